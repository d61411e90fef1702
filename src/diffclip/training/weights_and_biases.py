"""Telling Weights & Biases (https://docs.wandb.ai) about a run. Nothing that fails there stops training."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from diffclip.errors import InputError, require_group
from diffclip.files import write_text
from diffclip.training.about import without_credentials

WANDB_FOLDER = "wandb"
_ID_FILE = "id"
# seconds that the end of a run waits for what is still to be sent; the rest stays in the run's folder
_LAST_WAIT = 60.0


class WeightsAndBiases:
    """A run there with the same name as the folder here. Its id is kept in the folder, so that a resumed run goes on
    in it.

    Where the server does not answer, what it would be told is kept in `RUN/wandb` for `wandb sync`.

    Args:
        run: the folder.
        project: the project there.
        done: steps made before this start; a run from the beginning gets an id of its own.
        about: what is shown beside the recipe, credentials hidden.
        say: shows a line.

    Raises:
        InputError: wandb is missing, or has no key or a wrong one.
    """

    def __init__(
        self,
        run: Path,
        project: str,
        done: int,
        about: Mapping[str, Any] | None,
        say: Callable[[str], None],
    ) -> None:
        require_group("wandb", "wandb")
        import wandb

        self._say = say
        self._folder = run / WANDB_FOLDER
        # wandb makes its own folder of this name in the folder that it is given
        options: dict[str, Any] = {
            "project": project,
            "dir": str(run.resolve()),
            "id": _run_id(self._folder / _ID_FILE, fresh=done == 0),
            "name": run.resolve().name,
            "resume": "allow",
            "config": _config(run, about),
            # console: the bar is no text to keep; x_disable_meta: the command may hold credentials
            "settings": wandb.Settings(
                console="off",
                silent=True,
                save_code=False,
                x_disable_meta=True,
                finish_timeout=float(os.environ.get("WANDB_FINISH_TIMEOUT", _LAST_WAIT)),
            ),
        }
        self._run: Any = None
        try:
            self._run = wandb.init(**options)
            place = f"{self._folder}, to be sent by wandb sync" if self._run.offline else self._run.url
            say(f"Weights & Biases: {place}")
        except (wandb.errors.AuthenticationError, wandb.errors.UsageError) as error:
            raise InputError(
                f"Weights & Biases: {_line(error).rstrip('.')}; run wandb login, set WANDB_MODE=offline, "
                "or leave out the recipe's key wandb"
            ) from None
        except Exception as error:
            say(f"Weights & Biases does not answer ({_line(error)}); kept in {self._folder} for wandb sync")
            try:
                wandb.teardown()  # else the id counts as in use
                self._run = wandb.init(**options, mode="offline")
            except Exception as failure:
                say(f"Weights & Biases is told nothing ({_line(failure)})")

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Numbers by name, of one step; steps must not go back."""
        self._try(lambda run: run.log(dict(numbers), step=step))

    def close(self, failed: bool) -> None:
        """Send what is left, for a minute at most."""
        self._try(lambda run: run.finish(exit_code=int(failed)))
        if self._run is None:
            # else its process, if that is what broke, is asked once more when this one ends
            import wandb

            with suppress(Exception):
                wandb.teardown()
        self._run = None

    def _try(self, tell: Callable[[Any], object]) -> None:
        if self._run is None:
            return
        try:
            tell(self._run)
        # whatever goes wrong there is its own business; what was told so far lies in the folder
        except Exception as error:
            self._run = None
            self._say(f"Weights & Biases is told nothing more ({_line(error)}); see {self._folder}")


def _run_id(file: Path, fresh: bool) -> str:
    if not fresh and file.is_file():
        kept = file.read_text(encoding="utf-8", errors="replace").strip()
        if kept.isalnum():
            return kept
    made = uuid.uuid4().hex[:16]
    write_text(file, made + "\n")
    return made


def _config(run: Path, about: Mapping[str, Any] | None) -> dict[str, Any]:
    """The recipe as resolved, and what is known about this start."""
    file = run / "recipe.yaml"
    recipe = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None
    config = recipe if isinstance(recipe, dict) else {}
    # of plain types only, as it goes into a file of its own there
    known = json.loads(json.dumps({"about": about} if about else {}, default=str))
    hidden: dict[str, Any] = without_credentials({**config, **known})
    return hidden


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "…"

"""Our models in clip_benchmark (LAION-AI/CLIP_benchmark): a loader for its `--model_type`, and its command line.

The command line accepts only model types that it knows when it reads its arguments, so call `register` first:

    from diffclip.integrations.clip_benchmark import register
    register()
    clip_benchmark.cli.main()
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

import torch

from diffclip.config import model_names
from diffclip.errors import InputError, require_group
from diffclip.files import check_writable
from diffclip.sources.load import load_with_origin

if TYPE_CHECKING:
    from diffclip.model import CLIP
    from diffclip.preprocess import EvalTransform
    from diffclip.tokenizer import Tokenizer

MODEL_TYPE = "diffclip"


def register() -> None:
    """Make "diffclip" a model type of clip_benchmark, for functions and command line; a second call changes nothing."""
    require_group("eval", "clip_benchmark", "requests", "sklearn")
    from clip_benchmark import models

    models.TYPE2FUNC[MODEL_TYPE] = load_diffclip
    if MODEL_TYPE not in models.MODEL_TYPES:
        models.MODEL_TYPES.append(MODEL_TYPE)  # --model_type takes its choices from this list


def load_diffclip(
    model_name: str, pretrained: str, cache_dir: str | None = None, device: str | torch.device = "cpu"
) -> tuple[CLIP, EvalTransform, Tokenizer]:
    """Load a model in evaluation mode on `device`, its transform and its tokenizer, as clip_benchmark asks for them.

    Args:
        model_name: any label. One of our models' names must match the weights, else `InputError` is raised; it names
            the model of a published file, which has no configuration.
        pretrained: a model that `diffclip.load` takes.
        cache_dir: not used; the hub's client has its own settings (`HF_HOME`).
    """
    loaded = load_with_origin(pretrained, model_name if model_name in model_names() else None)
    return loaded.model.to(device), loaded.preprocess, loaded.tokenizer


def run_command(arguments: list[str]) -> None:
    """Run clip_benchmark's command line on `arguments`, with "diffclip" as the model and its type.

    Raises:
        InputError: the group `eval` is missing, or clip_benchmark refuses the weights, the set or the output.
        SystemExit: from clip_benchmark's parser, for `--help` (0) and for arguments that it refuses (2).
    """
    register()
    from clip_benchmark import cli

    if arguments[:1] == ["eval"]:  # of equal options the last one counts
        arguments = ["eval", "--model", MODEL_TYPE, "--model_type", MODEL_TYPE, *arguments[1:]]
    before, sys.argv = sys.argv, ["diffclip benchmark", *(arguments or ["--help"])]
    try:
        _, chosen = cli.get_parser_args()
    finally:
        sys.argv = before
    if chosen.which == "eval" and not any(word.startswith("--pretrained") for word in arguments):
        raise InputError("no model is given: diffclip benchmark eval --pretrained MODEL …")
    # of its own number of workers, and of classes that no image was given
    warnings.filterwarnings("ignore", r"This DataLoader will create|.* is ill-defined")
    try:
        if chosen.which == "build":
            cli.main_build(chosen)
        else:
            chosen.output = _Output(chosen.output)
            cli.main_eval(chosen)
    except (AssertionError, LookupError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"clip_benchmark says: {error} (a folder in its layout is --dataset wds/NAME --dataset_root FOLDER, and "
            "one of captions needs --task zeroshot_retrieval)"
        ) from error


class _Output(str):
    """A template for the path of a results file; slashes in names become `_`."""

    def format(self, *args: object, **fields: object) -> str:
        """Return the path if it can be written. Check this now: clip_benchmark opens the file after the last image."""
        name = super().format(*args, **{key: str(value).replace("/", "_") for key, value in fields.items()})
        check_writable(name)
        return name

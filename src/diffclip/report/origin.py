"""How results came about: recipe, init, seed, budget of each run, and versions of what made the report."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from diffclip.config import CLIPConfig
from diffclip.report.runs import FINE_TUNED, Run
from diffclip.report.series import Collection
from diffclip.report.tables import Row, Table
from diffclip.training.about import without_credentials

_SHOWN = ("batch_size", "lr", "weight_decay", "warmup_epochs", "precision")


def origin_table(collection: Collection) -> Table:
    """A row a run: what it was trained on, how, how long, and how far it got."""
    rows = []
    for series, run in collection.runs:
        seed = "–" if run.seed is None else str(run.seed)
        rows.append(
            Row(
                "one",
                [
                    series.label,
                    _start(run),
                    seed,
                    _training_data(run),
                    budget(run),
                    settings(run),
                    run.name,
                ],
            )
        )
    sizes = dict.fromkeys(_sizes(run.config) for _, run in collection.runs if run.config is not None)
    skipped = sum(run.skipped for _, run in collection.runs)
    notes = ["Budget as far as each run has got; time without validation.", *sizes]
    if skipped:
        notes.append(f"{skipped} lines of telemetry were cut short and are left out.")
    return Table(
        title="Runs",
        columns=["model", "init", "seed", "training data", "budget", "settings", "run folder"],
        rows=rows,
        notes=notes,
        numeric=False,
    )


def limits(collection: Collection, swept: bool = False) -> str:
    """What the comparison of these runs does not show; empty where there is none.

    `swept` says that the settings were chosen for the models apart, equal ones included.
    """
    if len({series for series, _ in collection.runs}) < 2:
        return ""
    recipes = {
        tuple(str(run.recipe.get(name)) for name in ("lr", "weight_decay", "epochs"))
        for _, run in collection.runs
    }
    shared = (
        "All runs share learning rate, weight decay and epochs; with settings of its own each may do better. "
        if len(recipes) == 1 and not swept
        else ""
    )
    return (
        "What this does not show: how the models compare at other sizes, with more data or with a longer "
        f"training. {shared}A model that is better here need not be better there."
    )


def budget(run: Run) -> str:
    """ "12 epochs, 7,200 steps, 1,843,200 samples, 31 min"."""
    parts = []
    epochs = run.recipe.get("epochs")
    if epochs is not None:
        parts.append(f"{epochs} epochs")
    parts.append(f"{int(run.steps['step'][-1]):,} steps")
    if "samples" in run.steps:
        parts.append(f"{int(run.steps['samples'][-1]):,} samples")
    if run.minutes is not None:
        parts.append(f"{run.minutes:.0f} min" if run.minutes >= 1 else f"{60 * run.minutes:.0f} s")
    return ", ".join(parts)


def settings(run: Run) -> str:
    """The recipe's main numbers in one line."""
    return ", ".join(
        f"{name} {_short(run.recipe[name])}" for name in _SHOWN if run.recipe.get(name) is not None
    )


def versions() -> str:
    """The versions of what made the report."""
    found = [f"Python {platform.python_version()}"]
    for package in ("diffclip", "torch", "matplotlib"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return f"Made with {', '.join(found)}."


def _sizes(config: CLIPConfig) -> str:
    """A model's sizes in words."""
    vision, text = config.vision, config.text
    return (
        f"Vision tower: {vision.width} wide, {vision.layers} layers, {vision.heads} heads, patches of "
        f"{vision.patch_size} px in pictures of {vision.image_size} px; text tower: {text.width} wide, "
        f"{text.layers} layers, {text.heads} heads, {text.context_length} tokens; "
        f"joint space: {config.embed_dim} wide."
    )


def _start(run: Run) -> str:
    """The init, or the last two parts of the path to the weights that the run went on from."""
    if run.init == FINE_TUNED:
        return f"{FINE_TUNED} from {', '.join(_sources(run.recipe['weights']))}"
    return run.init or "–"


def _training_data(run: Run) -> str:
    """The last two parts of the paths and addresses that the run was trained on, with their weights."""
    data = run.recipe.get("data")
    train = data.get("train") if isinstance(data, dict) else data
    return ", ".join(_sources(train)) or "–"


def _sources(train: Any) -> list[str]:
    if isinstance(train, list):
        return [text for entry in train for text in _sources(entry)]
    if isinstance(train, dict):
        weight = train.get("weight", 1.0)
        shown = ", ".join(_sources(train.get("shards")))
        return [shown if weight == 1 else f"{_short(weight)} × {shown}"]
    return ["/".join(Path(without_credentials(str(train)).split("?")[0]).parts[-2:])] if train else []


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)

"""A study of two tiny models, and lines of finished runs with made-up numbers."""

from pathlib import Path
from typing import Any

from tiny_recipe import tiny_recipe

from diffclip.evaluation.records import Record
from diffclip.study.grid import Planned
from diffclip.study.results import StudyFolder

RECIPE = tiny_recipe(batch_size=16, log_every=2, data={"train": "nowhere", "val": "nowhere", "memory": True})
STUDY = {
    "title": "Tiny models on made images",
    "recipe": "tiny.yaml",
    "data": "flickr8k",
    "sweep": {"lr": [1e-3, 2e-3], "weight_decay": [0.1], "seeds": [100]},
    "models": {
        "seeds": [0, 1],
        "suite": "brief",
        "arms": {name: {"change": {"model": name}} for name in ("CLIP", "DiffCLIP")},
    },
}
NO_NORM = {"change": {"model": "DiffCLIP-no-norm"}, "against": "DiffCLIP"}
ABLATIONS = {"seeds": [0], "suite": "brief", "arms": {"DiffCLIP-no-norm": NO_NORM}}


def write_finished(out: Path, planned: Planned, score: float | None, **facts: Any) -> None:
    """Add a finished run of 60 s, with 30 s for its suite, to the study folder `out`."""
    line = {"run": planned.name, "group": planned.group, "arm": planned.arm, "seed": planned.seed}
    line |= {"score": score, "diverged": None if score is not None else 7, "steps": 4, "seconds": 60.0}
    line |= {"suite_seconds": 30.0 if planned.suite else None, "recipe": planned.digest}
    line |= {"lr": planned.recipe.lr, "weight_decay": planned.recipe.weight_decay}
    line |= {"device": "a laptop", "threads": 4}
    about: dict[str, Any] = {
        "model": planned.arm,
        "seed": planned.seed,
        "weights": "",
        "protocol": "",
        "split": "val",
    }
    about |= {
        "task": "validation",
        "dataset": "flickr8k",
        "metric": "score",
        "count": 8,
        "low": None,
        "high": None,
    }
    StudyFolder(out).add(line | facts, [Record(**about, value=score)], {"run": planned.name})

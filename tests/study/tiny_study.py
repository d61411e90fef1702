"""A study of two tiny models, and runs of it as they are condensed, with made-up numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_recipe import tiny_recipe

from diffclip.study.plan import Planned
from diffclip.study.recipe import Study
from diffclip.training.recipe import to_yaml

RECIPE = tiny_recipe(batch_size=16, data={"train": "nowhere", "val": "nowhere"})
STUDY = {
    "title": "Tiny models on made pictures",
    "recipe": "tiny.yaml",
    "data": "flickr8k",
    "sweep": {"lr": [1e-3, 2e-3], "weight_decay": [0.1], "seed": 100},
    "models": {
        "seeds": [0, 1],
        "suite": "brief",
        "arms": {"CLIP": {"change": {"model": "CLIP"}}, "DiffCLIP": {"change": {"model": "DiffCLIP"}}},
    },
}
ABLATIONS = {
    "seeds": [0],
    "suite": "brief",
    "arms": {
        "DiffCLIP-no-norm": {
            "change": {"model": "DiffCLIP-no-norm"},
            "factor": "without the head norm",
            "against": "DiffCLIP",
        }
    },
}


def write_finished(study: Study, planned: Planned, out: Path, score: float, **costs: Any) -> Path:
    """The folder of a finished run whose best score is `score`, with more in its cost."""
    folder = out / str(planned)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(to_yaml(study.training(planned.change)))
    rows = [{"step": 1, "score": score / 2}, {"step": 2, "score": score}, {"step": 3, "score": score / 3}]
    (folder / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cost = {"seconds": 60.0, "suite": planned.suite, "suite_seconds": 30.0 if planned.suite else None}
    (folder / "cost.json").write_text(json.dumps(cost | costs))
    return folder

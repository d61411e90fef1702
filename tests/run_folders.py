"""Write run folders as training does, with invented but reproducible numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import yaml

from diffclip.evaluation.records import Record, write_records

SIZE = "v16x3x2p8-t16x2x2"
LAYERS = {"visual": 3, "text": 2}
DIFFERENTIAL = {
    "CLIP": (),
    "DiffCLIP": ("visual", "text"),
    "DiffCLIP-dynamic": ("visual", "text"),
    "DiffCLIP-vision": ("visual",),
    "DiffCLIP-no-norm": ("visual", "text"),
    "DiffCLIP-lambda0": ("visual", "text"),
}
ZERO_SHOT = "zero-shot; 10 classes, 2 templates averaged after normalisation; ties count against"
RETRIEVAL = "retrieval; ties count against"


def make_run(
    folder: Path,
    model: str = "DiffCLIP",
    seed: int = 0,
    init: str = "matched",
    steps: int = 40,
    level: float = 0.5,
    evaluated: bool = True,
) -> Path:
    """Write a run of `steps` steps with two validations, and records if `evaluated`; recalls end near `level`."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng([seed, len(model), len(init)])
    vision = {"image_size": 16, "patch_size": 8, "width": 16, "layers": 3, "heads": 2}
    text = {"context_length": 12, "width": 16, "layers": 2, "heads": 2}
    recipe = {"model": model, "architecture": {"embed_dim": 16, "vision": vision, "text": text}, "init": init}
    recipe |= {"seed": seed, "epochs": 2, "batch_size": 8, "lr": 1e-3, "weight_decay": 0.2}
    recipe["data"] = {"train": "sets/scenes/train", "val": "sets/scenes/val"}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    rows = [step_record(model, step, steps, rng) for step in range(1, steps + 1)]
    write_lines(folder / "metrics.jsonl", rows)
    write_lines(folder / "validation.jsonl", [_validation(model, epoch, steps, level) for epoch in (1, 2)])
    if evaluated:
        weights = str(folder / "checkpoints" / "best")
        write_records(folder / "results.jsonl", records(model, seed, level, weights, rng))
    return folder


def write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _by_layer(model: str, value: Callable[[int], float]) -> dict[str, list[float]]:
    towers = DIFFERENTIAL[model]
    return {tower: [value(n) for n in range(count * (tower in towers))] for tower, count in LAYERS.items()}


def step_record(model: str, step: int, steps: int, rng: np.random.Generator) -> dict[str, object]:
    share = step / steps
    row = {"step": step, "epoch": 1 + (2 * step - 1) // (2 * steps), "samples": 8 * step}
    row |= {"loss": 2 - share + 0.01 * float(rng.standard_normal()), "accuracy": 0.4 * share}
    row |= {"lr": 1e-3 * (1 - share), "logit_scale": 14.3, "grad_norm": 1.5}
    row |= {"samples_per_second": 80.0, "data_wait": 0.02}
    return row | {"lambda": _by_layer(model, lambda layer: 0.8 + 0.1 * share * math.sin(layer + 1))}


def records(
    model: str, seed: int | None, level: float, weights: str, rng: np.random.Generator
) -> list[Record]:
    about = {"model": model, "weights": weights, "dataset": "scenes", "split": "test", "seed": seed}

    def record(task: str, metric: str, count: int, protocol: str, chance: float) -> Record:
        value = min(1.0, max(0.0, level + 0.01 * float(rng.standard_normal())))
        half = 1.96 * math.sqrt(value * (1 - value) / count)
        fields = {"task": task, "metric": metric, "count": count, "protocol": protocol, "chance": chance}
        return Record(value=value, low=max(0.0, value - half), high=min(1.0, value + half), **about, **fields)

    return [
        record("zero-shot", "acc1", 400, ZERO_SHOT, 0.1),
        record("retrieval", "image_retrieval_recall@5", 1000, RETRIEVAL, 0.005),
        record("retrieval", "text_retrieval_recall@5", 200, RETRIEVAL, 0.005),
    ]


def _validation(model: str, epoch: int, steps: int, level: float) -> dict[str, object]:
    step, score = steps * epoch // 2, level * epoch / 2
    names = [f"{direction}_retrieval_recall@{k}" for direction in ("image", "text") for k in (1, 5, 10)]
    row = {"step": step, "epoch": epoch, "samples": 8 * step, **dict.fromkeys([*names, "score"], score)}
    return row | {"map_correlation": _by_layer(model, lambda layer: 0.9 - 0.2 * epoch - 0.1 * layer)}

"""Records, runs and studies with made-up but reproducible numbers: models over seeds on a few tasks."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from diffclip.evaluation.records import Record, records_table, write_records
from diffclip.report.frame import Results, results_of

SETS = ("cifar10", "caltech101")
PATTERNS = ("Orientation and Direction", "Color and Appearance", "Quantity and Count")
LAYERS = {"visual": 3, "text": 2}
PANELS = {
    "linear probing": 0.1,
    "few-shot": 0.2,
    "image retrieval": 0.0,
    "text retrieval": 0.0,
    "zero-shot": 0.0,
    "out of domain": -0.05,
}


def made(
    levels: Mapping[str, float], seeds: Sequence[int] = (0, 1, 2), noise: float = 0.004, draws: int = 1
) -> list[Record]:
    """Records of models whose values are close to `levels`, on the tasks of a suite."""
    records = []
    for model, level in levels.items():
        for seed in seeds:
            rng = np.random.default_rng([seed, len(model)])
            about = {"model": model, "seed": seed, "weights": f"{model}-s{seed}/checkpoints/best"}
            for task, dataset, metric, shift, facts in measures(draws):
                value = float(np.clip(level + shift + noise * rng.standard_normal(), 0.001, 0.999))
                records.append(make_record(about, task, dataset, metric, value, **facts))
    return records


def measures(draws: int) -> list[tuple[str, str, str, float, dict[str, Any]]]:
    """Task, set, metric, difference from the model's level and further fields of each record of one model."""
    rows: list[tuple[str, str, str, float, dict[str, Any]]] = []
    for name in SETS:
        probe = "mean_per_class_recall" if name == "caltech101" else "acc1"
        rows.append(("zero-shot", name, "acc1", 0.0, {"chance": 0.1}))
        rows += [("linear-probe", name, probe, 0.1, {"chance": 0.1, "draw": draw}) for draw in range(draws)]
        rows += [("few-shot", name, "acc1", 0.2, {"chance": 0.2, "draw": draw}) for draw in range(draws)]
    for metric in ("image_retrieval_recall", "text_retrieval_recall"):
        rows += [("retrieval", "flickr8k", f"{metric}@{k}", 0.0, {"chance": 0.005 * k}) for k in (1, 5)]
    averaged = {"chance": 0.1, "of": SETS}
    rows += [("six-tasks", panel, "average", shift, averaged) for panel, shift in PANELS.items()]
    shifts = {"chance": 0.1, "of": ("cifar10-noisy",)}
    rows.append(("out-of-domain", "cifar10", "mean_of_shifts", -0.05, shifts))
    for pattern in PATTERNS:
        rows.append(("mmvp", "mmvp", f"pair_accuracy/{pattern}", -0.3, {"count": 15, "chance": 0.25}))
    rows.append(("mmvp", "mmvp", "pair_accuracy", -0.3, {"count": 135, "chance": 0.25}))
    relevance = {"chance": 0.5, "map": "relevance"}
    rows.append(("focus", "oxford_pets3", "auroc", 0.1, relevance))
    return [*rows, ("focus", "oxford_pets3", "auroc", 0.1, {**relevance, "layer": 1})]


def make_record(
    about: Mapping[str, Any], task: str, dataset: str, metric: str, value: float, **facts: Any
) -> Record:
    """A record with an interval over `count` items."""
    count = facts.pop("count", 1000)
    half = 1.96 * math.sqrt(max(value * (1 - value), 0) / count)
    fields = {"low": max(0.0, value - half), "high": min(1.0, value + half), "chance": None, "split": "test"}
    fields |= {"task": task, "dataset": dataset, "metric": metric, "value": value, "count": count}
    return Record(**{**about, "protocol": f"{task}, as made up", **fields, **facts})


def results_from(records: Sequence[Record], *curves: Any) -> Results:
    return results_of(records_table(records), *curves)


def write_study(folder: Path, levels: Mapping[str, float], seeds: Sequence[int] = (0, 1, 2)) -> Path:
    """Write a study folder as `diffclip study` leaves it, with a validation score per run."""
    records = made(levels, seeds)
    for model, level in levels.items():
        for seed in seeds:
            about = {"model": model, "seed": seed, "weights": "best"}
            noise = 0.001 * math.sin(7 * seed + len(model))
            records.append(
                make_record(about, "validation", "flickr8k", "score", level / 5 + noise, split="val")
            )
            cost = 1000 + (model != "CLIP")
            records.append(make_record(about, "cost", "flickr8k", "parameters", cost, low=None, high=None))
    write_records(folder / "results.jsonl", records)
    arms = {model: {"change": {"model": model}} for model in levels}
    primary = {"task": "validation", "dataset": "flickr8k", "metric": "score"}
    study: dict[str, Any] = {"title": "A made-up study", "recipe": "flickr8k_cpu", "data": "flickr8k"}
    study["models"] = {"arms": arms, "seeds": list(seeds), "suite": "brief"}
    study["contrasts"] = [[model, "CLIP"] for model in levels if model != "CLIP"]
    study["endpoints"] = {"primary": primary | {"arm": "DiffCLIP", "against": "CLIP", "margin": 0.01}}
    (folder / "spec.yaml").write_text(yaml.safe_dump(study))
    swept = {"group": "sweep", "seed": 100, "weight_decay": 0.1, "score": 0.05, "diverged": None}
    swept |= {"steps": 100, "seconds": 60.0}
    rates = [(model, rate) for model in levels for rate in (1e-4, 1e-3)]
    runs = [swept | {"run": f"sweep/{model}-lr{rate}", "arm": model, "lr": rate} for model, rate in rates]
    ended = swept | {"group": "models", "weight_decay": 0.1, "lr": 1e-3}
    runs += [ended | {"run": f"models/{m}-s{seed}", "arm": m, "seed": seed} for m in levels for seed in seeds]
    curves = []
    for model in levels:
        towers = (lambda rows: {}) if model == "CLIP" else (lambda rows: {"vision": rows})
        curve: dict[str, Any] = {"group": "models", "arm": model, "lambda": towers([[0.8, 0.7]] * 3)}
        curve |= {"step": [1, 50, 100], "loss": [5.0, 4.0, 3.0]}
        curve["validation"] = {"step": [50, 100], "score": [0.02, 0.05]}
        curve["validation"] |= {"map_correlation": towers([[-0.2, -0.3]] * 2)}
        curves += [curve | {"run": f"models/{model}-s{seed}", "seed": seed} for seed in seeds]
    write_lines(folder / "runs.jsonl", runs)
    write_lines(folder / "curves.jsonl", curves)
    return folder


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_run(
    folder: Path, model: str = "DiffCLIP", seed: int = 0, level: float = 0.5, evaluated: bool = True
) -> Path:
    """Write a run of 40 steps with two validations, and records if `evaluated`; recalls end near `level`."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng([seed, len(model)])
    vision = {"image_size": 16, "patch_size": 8, "width": 16, "layers": 3, "heads": 2}
    text = {"context_length": 12, "width": 16, "layers": 2, "heads": 2}
    recipe = {"model": model, "architecture": {"embed_dim": 16, "vision": vision, "text": text}, "seed": seed}
    recipe |= {"init": "matched", "epochs": 2, "batch_size": 8, "lr": 1e-3, "weight_decay": 0.2}
    recipe["data"] = {"train": "sets/scenes/train", "val": "sets/scenes/val"}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))

    def by_layer(value: Callable[[int], float]) -> dict[str, list[float]]:
        return {tower: [*map(value, range(count * (model != "CLIP")))] for tower, count in LAYERS.items()}

    steps, validations = [], []
    for step in range(1, 41):
        share = step / 40
        row: dict[str, Any] = {"step": step, "epoch": 1 + (step > 20), "samples": 8 * step}
        row |= {"loss": 2 - share + 0.01 * float(rng.standard_normal()), "accuracy": 0.4 * share}
        row |= {"lr": 1e-3 * (1 - share), "logit_scale": 14.3, "grad_norm": 1.5}
        row |= {"samples_per_second": 80.0, "data_wait": 0.02}
        steps.append(row | {"lambda": by_layer(lambda n, share=share: 0.8 + 0.1 * share * math.sin(n + 1))})
    names = [f"{direction}_retrieval_recall@{k}" for direction in ("image", "text") for k in (1, 5, 10)]
    for epoch in (1, 2):
        row = {"step": 20 * epoch, "epoch": epoch, "samples": 160 * epoch}
        row |= dict.fromkeys([*names, "score"], level * epoch / 2)
        validations.append(row | {"map_correlation": by_layer(lambda n, e=epoch: 0.9 - 0.2 * e - 0.1 * n)})
    write_lines(folder / "metrics.jsonl", steps)
    write_lines(folder / "validation.jsonl", validations)
    if evaluated:
        about = {"model": model, "seed": seed, "weights": str(folder / "checkpoints" / "best")}
        measured = [("zero-shot", "acc1", 0.1)]
        measured += [("retrieval", f"{way}_retrieval_recall@5", 0.005) for way in ("image", "text")]
        write_records(
            folder / "results.jsonl",
            [
                make_record(
                    about, task, "scenes", metric, level + 0.01 * float(rng.standard_normal()), chance=chance
                )
                for task, metric, chance in measured
            ],
        )
    return folder

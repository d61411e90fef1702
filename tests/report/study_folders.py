"""Studies' folders as `diffclip study` leaves them, with numbers given by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from run_folders import make_run, write_lines
from tiny_recipe import tiny_recipe

from diffclip.evaluation.records import Record, write_records
from diffclip.report.study_data import StudyData, read_study_data
from diffclip.study.choose import choose
from diffclip.study.folder import STUDY_FILE
from diffclip.study.plan import Planned, grid_runs, sweep_runs
from diffclip.study.recipe import Study, read_study, to_yaml
from diffclip.study.timing import TIMING_FILE

BASE = tiny_recipe(data={"train": "sets/scenes/train", "val": "sets/scenes/val"})
MODELS = {
    "CLIP": {"change": {"model": "CLIP"}},
    "DiffCLIP": {"change": {"model": "DiffCLIP"}},
    "DiffCLIP-vision": {"change": {"model": "DiffCLIP-vision"}},
    "DiffCLIP-published": {"change": {"model": "DiffCLIP", "init": "published"}},
}
ABLATIONS = {
    "DiffCLIP-one-map": {"change": {"model": "DiffCLIP-one-map"}, "factor": "one map", "against": "CLIP"},
    "DiffCLIP-no-norm": {
        "change": {"model": "DiffCLIP-no-norm"},
        "factor": "without the head norm",
        "against": "DiffCLIP",
    },
    "CLIP-half-heads": {
        "change": {"model": "CLIP", "architecture.vision.heads": 1},
        "factor": "half as many heads",
        "against": "CLIP",
    },
}
SWEEP = {"lr": [0.0005, 0.001], "weight_decay": [0.1, 0.2, 0.5], "seed": 100}
DIVERGED = "diverged"
DIVERGED_AT = 7
Levels = Mapping[str, Sequence[float | str | None]]
"""Of each arm the level of each seed; None for a run that is not finished, `DIVERGED` for one that is so."""


def make_study(
    folder: Path,
    levels: Levels,
    sweep: Levels | None = None,
    ablations: Mapping[str, dict[str, Any]] | None = ABLATIONS,
    parameters: Mapping[str, int] | None = None,
    ratios: Mapping[str, tuple[float, float, float]] | None = None,
    models: Mapping[str, dict[str, Any]] = MODELS,
) -> StudyData:
    """A study of the arms above with as many seeds as `levels` have; a level is a run's score and all its recalls.

    `sweep` holds the scores of CLIP and DiffCLIP in the order of the plan; None leaves the sweep out. `ratios` are the
    times a step that were measured alone, each with its interval; None where they were not.
    """
    folder.mkdir(parents=True)
    base = folder.parent / f"{folder.name}_base.yaml"
    base.write_text(yaml.safe_dump(BASE, sort_keys=False))
    seeds = list(range(max(map(len, levels.values()), default=1)))
    fields = {
        "title": "A small study",
        "recipe": str(base),
        "data": "scenes",
        "sweep": dict(SWEEP) if sweep is not None else None,
        "models": {"arms": dict(models), "seeds": seeds, "suite": "scenes"},
        "ablations": {"arms": dict(ablations), "seeds": seeds, "suite": "brief"} if ablations else None,
    }
    (folder / STUDY_FILE).write_text(yaml.safe_dump(fields, sort_keys=False))
    study = read_study(folder / STUDY_FILE)
    (folder / STUDY_FILE).write_text(to_yaml(study))
    done: dict[str, int] = {}
    for planned in sweep_runs(study):
        place = done[planned.arm] = done.get(planned.arm, -1) + 1
        score = (sweep or {}).get(planned.arm, [])[place : place + 1]
        if score and score[0] is not None:
            _make(study, planned, folder, score[0], {})
    whole = sweep and all(None not in own and set(own) != {DIVERGED} for own in sweep.values())
    chosen = choose(study, folder) if whole else {}
    for planned in grid_runs(study, chosen):
        own = levels.get(planned.arm, ())
        level = own[planned.seed] if planned.seed < len(own) else None
        if level is not None:
            _make(study, planned, folder, level, {"parameters": (parameters or {}).get(planned.arm, 1000)})
    if ratios is not None:
        (folder / TIMING_FILE).write_text(json.dumps(_timing(ratios)))
    return read_study_data(folder)


def _timing(ratios: Mapping[str, tuple[float, float, float]]) -> dict[str, Any]:
    arms = {
        arm: {"milliseconds": 500 * ratio, "ratio": ratio, "low": low, "high": high, "peak_memory": None}
        for arm, (ratio, low, high) in ratios.items()
    }
    return {"device": "a device", "threads": 2, "torch": "2", "rounds": 9, "batch_size": 64, "arms": arms}


def _make(study: Study, planned: Planned, out: Path, given: float | str, cost: Mapping[str, float]) -> None:
    recipe = study.training(planned.change)
    level = 0.5 if isinstance(given, str) else given
    folder = make_run(out / str(planned), "CLIP", planned.seed, evaluated=False, level=level)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False))
    rows = [json.loads(line) for line in (folder / "validation.jsonl").read_text().splitlines()]
    # the best need not be the last
    write_lines(folder / "validation.jsonl", [rows[0] | {"score": level}, rows[1] | {"score": level / 2}])
    told = {
        **{"seconds": 60.0, "step_seconds": 0.5, "peak_memory": 2**30, "memory_of": "process"},
        **{
            "parameters": 1000,
            "device": "a device",
            "side_by_side": 2,
            "threads": 1,
            "torch": "2",
            "diffclip": "0",
        },
        **{"suite": planned.suite, "suite_seconds": None},
    }
    if given == DIVERGED:
        # before its first whole step
        (folder / "metrics.jsonl").write_text("")
        (folder / "validation.jsonl").unlink()
        told |= {"step_seconds": None, "diverged": DIVERGED_AT}
    (folder / "cost.json").write_text(json.dumps({**told, **cost}))
    if planned.suite is not None and given != DIVERGED:
        write_records(folder / "results.jsonl", _records(planned, level))


def _records(planned: Planned, level: float) -> list[Record]:
    tasks = [("retrieval", f"{one}_retrieval_recall@5") for one in ("image", "text")]
    return [
        Record(
            model=f"{planned.change['model']}-v16x3x2p8-t16x2x2",
            weights=f"{planned.name}/checkpoints/best",
            task=task,
            dataset="scenes",
            split="test",
            metric=metric,
            value=level,
            count=100,
            low=max(0.0, level - 0.1),
            high=min(1.0, level + 0.1),
            seed=planned.seed,
            protocol=f"{task}; made up",
        )
        for task, metric in [*tasks, ("zero-shot", "acc1")]
    ]

"""The demonstration: scenes, CLIP and DiffCLIP trained on them side by side, both evaluated, one page.

Both models have the same init (`matched`), data order and budget. Whatever is there already is used again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from diffclip.config import name_of
from diffclip.data.evaluation_sets import open_set
from diffclip.evaluation.ledger import Ledger
from diffclip.evaluation.metrics import chance_at, chance_of_image_to_text
from diffclip.evaluation.records import Record, read_records
from diffclip.evaluation.tasks import Setting, run_task
from diffclip.loading import load
from diffclip.report.examples import attention_examples, retrieval_examples
from diffclip.report.page import write_report
from diffclip.scenes import write_scenes
from diffclip.training.checkpoint import STATE_FILE
from diffclip.training.loop import train
from diffclip.training.recipe import read_recipe

MODELS = ("CLIP", "DiffCLIP")
RECIPE = "scenes_demo"
# task → the set's folder within the scenes
TASKS = {"retrieval": "captions", "zero-shot": "colours"}
_TRAIN, _VAL, _TEST = 6000, 500, 1000
_EXAMPLES, _ATTENTION_PICTURES = 4, 6


def run_demo(folder: Path, say: Callable[[str], None]) -> Path:
    """Make or complete the demonstration in `folder` and return its page, `report.html`.

    Raises:
        InputError: the folder holds something else, or the disk is full.
    """
    scenes = folder / "scenes"
    drawn = write_scenes(scenes, size=64, train=_TRAIN, val=_VAL, test=_TEST, seed=0, workers=2)
    say(
        f"scenes: {'drawn in' if drawn else 'reusing'} {scenes} ({_TRAIN + _VAL + _TEST:,} captioned pictures)"
    )

    runs = [_train(folder, scenes, model, say) for model in MODELS]
    records = [record for run in runs for record in _evaluate(run, scenes, say)]
    chances = _chances(scenes)
    for record in records:
        if record.metric in ("image_retrieval_recall@5", "text_retrieval_recall@5", "acc1"):
            say(
                f"{Path(record.weights).parents[1].name}: {record.metric} {record.value:.1%} "
                f"(chance {chances[record.metric]:.1%}) on {record.count} held-out items"
            )
    models = {run.name: load(run / "checkpoints" / "best") for run in runs}
    test = open_set(scenes / "captions", "test")
    page = write_report(
        runs,
        folder / "report.html",
        title="CLIP and DiffCLIP on the built-in scenes",
        command="make demo",
        extras=[
            retrieval_examples(models, test, _EXAMPLES),
            attention_examples(models, test, _ATTENTION_PICTURES),
        ],
    )
    say(f"the page: {page}")
    return page


def _train(folder: Path, scenes: Path, model: str, say: Callable[[str], None]) -> Path:
    """Train `model`, go on with it, or find it finished; returns its run folder."""
    run = folder / model
    recipe = read_recipe(
        RECIPE,
        [f"model={model}", *(f"data.{split}={scenes / 'captions' / split}" for split in ("train", "val"))],
    )
    say(f"{model}: training in {run}")
    train(recipe, run, resume=True)
    return run


def _evaluate(run: Path, scenes: Path, say: Callable[[str], None]) -> list[Record]:
    """The records of `run`'s best checkpoint on the held-out scenes, made once and kept in its folder."""
    file, checkpoint = run / "results.jsonl", run / "checkpoints" / "best"
    if file.is_file() and file.stat().st_mtime >= (checkpoint / STATE_FILE).stat().st_mtime:
        say(f"{run.name}: reusing the results in {file}")
        return read_records(file)
    model, preprocess, tokenizer = load(checkpoint)
    seed = read_recipe(run / "recipe.yaml").seed
    ledger = Ledger(file)
    for task, data in TASKS.items():
        setting = Setting(model, preprocess, tokenizer, open_set(scenes / data, "test"))
        ledger.add(run_task(task, setting), name_of(model.config), str(checkpoint), seed)
    ledger.write()
    return ledger.records


def _chances(scenes: Path) -> dict[str, float]:
    """What a random order gets on the held-out scenes, by metric."""
    captioned = open_set(scenes / TASKS["retrieval"], "test")
    owners = torch.repeat_interleave(torch.tensor([len(own) for own in captioned.captions]))
    return {
        "image_retrieval_recall@5": chance_at(5, len(captioned)),
        "text_retrieval_recall@5": chance_of_image_to_text(5, owners),
        "acc1": 1 / len(open_set(scenes / TASKS["zero-shot"], "test").classnames),
    }

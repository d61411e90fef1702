"""Models trained over seeds with one recipe, put through a suite, and condensed into a folder of results.

    python -m benchmarks.seeds --data ../shared/data --models CLIP DiffCLIP --seeds 0 1 2
    python -m benchmarks.seeds --recipe scenes_demo --data runs/demo/scenes --train captions --suite scenes

For each seed all models have the same init, data order and budget. A finished run is used again, a stopped one goes
on, and so does a stopped suite. Then `diffclip report benchmarks/results/flickr8k_cpu --markdown docs/results.md
--section flickr8k_cpu`. `--data` holds the set to train on (train, val) and, for the suite `quick`, `flickr8k` (val),
`cifar10` and `caltech101` (train, test), all in clip_benchmark's layout.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from diffclip.evaluation.ledger import Ledger
from diffclip.evaluation.runner import Runner, Sets
from diffclip.evaluation.store import Store
from diffclip.evaluation.suite import SUITES, suite
from diffclip.model_source import load_for_use
from diffclip.report.save import save_results
from diffclip.training.complete import complete_run
from diffclip.training.recipe import read_recipe

DRAWS = range(3)


def evaluate(run: Path, name: str, sets: Sets, device: str) -> None:
    """The suite called `name` of a run's best checkpoint, into its `results.jsonl`, outcomes beside it."""
    loaded = load_for_use(str(run))
    loaded.model.to(device)
    ledger = Ledger(run / "results.jsonl")
    runner = Runner(sets, DRAWS, Store(run / "results.parts"), batch_size=256)
    for measured in runner.run(loaded, suite(name)):
        if measured.result is None:
            print(f"{run.name}: {measured.entry} FAILED: {measured.failure}", flush=True)
            continue
        ledger.add(measured.result, loaded.label, loaded.weights, loaded.seed)
        score = measured.result.scores[0]
        print(f"{run.name}: {measured.entry}: {score.metric} {score.value:.1%}", flush=True)
    ledger.write()


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="flickr8k_cpu")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--train", default="flickr8k", help="the set in DATA to train on")
    parser.add_argument("--suite", choices=SUITES, default="quick")
    parser.add_argument("--models", nargs="+", default=["CLIP", "DiffCLIP"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=None, help="default: runs/RECIPE")
    parser.add_argument("--output", type=Path, default=None, help="default: benchmarks/results/RECIPE")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes to the recipe")
    options = parser.parse_args()
    runs = options.runs or Path("runs") / options.recipe
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sets = Sets(options.data)
    finished = []
    for seed in options.seeds:
        for model in options.models:
            where = [f"data.{split}={options.data / options.train / split}" for split in ("train", "val")]
            recipe = read_recipe(options.recipe, [f"model={model}", f"seed={seed}", *where, *options.set])
            run = runs / f"{model}-s{seed}"
            complete_run(recipe, run, print)
            evaluate(run, options.suite, sets, device)
            finished.append(run)
    print(
        f"written to {save_results(finished, options.output or Path('benchmarks/results') / options.recipe)}"
    )


if __name__ == "__main__":
    main()

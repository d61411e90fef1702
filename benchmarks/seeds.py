"""Models trained over seeds with one recipe, put through a suite, and condensed into a folder of results.

    python -m benchmarks.seeds --data ../shared/data --models CLIP DiffCLIP --seeds 0 1 2
    python -m benchmarks.seeds --recipe scenes_demo --data runs/demo/scenes --train captions --suite scenes

For each seed all models have the same init, data order and budget. A finished run is used again, a stopped one goes
on, and so does a stopped suite. Where a run or a task fails, nothing is condensed. Then `diffclip report
benchmarks/results/flickr8k_cpu --markdown docs/results/flickr8k_cpu.md`. `--data` holds the set to train on
(train, val) and, for the suite `quick`, `flickr8k` (val), `cifar10` and `caltech101` (train, test), all in
clip_benchmark's layout.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import torch

from diffclip.errors import DiffCLIPError
from diffclip.evaluation.runner import Sets
from diffclip.evaluation.suite import SUITES
from diffclip.report.save import save_results
from diffclip.study.evaluate import evaluate_run
from diffclip.training.loop import train
from diffclip.training.recipe import read_recipe


def train_and_evaluate(options: argparse.Namespace) -> Path:
    """Every model with every seed; the folder that it is condensed into when all is done.

    Raises:
        DiffCLIPError: a run or a task of the suite failed; nothing is condensed.
    """
    runs = options.runs or Path("runs") / options.recipe
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sets = Sets(options.data)
    finished = []
    for seed in options.seeds:
        for model in options.models:
            where = [f"data.{split}={options.data / options.train / split}" for split in ("train", "val")]
            recipe = read_recipe(options.recipe, [f"model={model}", f"seed={seed}", *where, *options.set])
            run = runs / f"{model}-s{seed}"
            train(recipe, run, resume=True)
            evaluate_run(run, options.suite, sets, device, partial(print, f"{run.name}:", flush=True))
            finished.append(run)
    return save_results(finished, options.output or Path("benchmarks/results") / options.recipe)


def main() -> None:
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
    try:
        print(f"written to {train_and_evaluate(options)}")
    except DiffCLIPError as error:
        print(f"seeds: {error}; nothing is condensed", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

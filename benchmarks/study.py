"""Models trained on Flickr8k over seeds with one recipe, evaluated, and condensed into a folder of results.

    python -m benchmarks.study --data ../shared/data --models CLIP DiffCLIP --seeds 0 1 2

For each seed all models have the same init, data order and budget. A finished run is used again, a stopped one goes
on. Then `diffclip report benchmarks/results/flickr8k_cpu --markdown docs/results.md --section flickr8k_cpu`.
`--data` holds `flickr8k` (train, val), `cifar10` (test) and `caltech101` (test) in clip_benchmark's layout.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from diffclip.config import name_of
from diffclip.data.catalog import open_set
from diffclip.evaluation.records import Record, write_records
from diffclip.evaluation.tasks import Setting, run_task
from diffclip.loading import load
from diffclip.report.save import save_results
from diffclip.training.complete import complete_run
from diffclip.training.recipe import read_recipe

# set → split that the models are measured on; Flickr8k's is the validation split of the training data
SETS = {"flickr8k": "val", "cifar10": "test", "caltech101": "test"}


def evaluate(run: Path, data: Path, seed: int, device: str) -> list[Record]:
    """The records of a run's best checkpoint on every set, also written to the run's `results.jsonl`."""
    model, preprocess, tokenizer = load(run / "checkpoints" / "best")
    model.to(device)
    records = []
    for name, split in SETS.items():
        setting = Setting(model, preprocess, tokenizer, open_set(data / name, split), batch_size=256)
        result = run_task(None, setting)
        records += result.records(name_of(model.config), f"{run}/checkpoints/best", seed)
        shown = {
            s.metric: f"{s.value:.1%}" for s in result.scores if s.metric in ("acc1",) or "@5" in s.metric
        }
        print(f"{run.name}: {name} {shown}", flush=True)
    write_records(run / "results.jsonl", records)
    return records


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="flickr8k_cpu")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--models", nargs="+", default=["CLIP", "DiffCLIP"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=None, help="default: runs/RECIPE")
    parser.add_argument("--output", type=Path, default=None, help="default: benchmarks/results/RECIPE")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes to the recipe")
    options = parser.parse_args()
    runs = options.runs or Path("runs") / options.recipe
    device = "cuda" if torch.cuda.is_available() else "cpu"
    finished = []
    for seed in options.seeds:
        for model in options.models:
            where = [f"data.{split}={options.data / 'flickr8k' / split}" for split in ("train", "val")]
            recipe = read_recipe(options.recipe, [f"model={model}", f"seed={seed}", *where, *options.set])
            run = runs / f"{model}-s{seed}"
            complete_run(recipe, run, print)
            if not (run / "results.jsonl").is_file():
                evaluate(run, options.data, seed, device)
            finished.append(run)
    print(
        f"written to {save_results(finished, options.output or Path('benchmarks/results') / options.recipe)}"
    )


if __name__ == "__main__":
    main()

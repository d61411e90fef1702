"""How long few-shot and the search of a linear probe take.

    python -m benchmarks.probe [--data sets/cifar10] [--model CLIP-ViT-B-32] [--output benchmarks/results]

Few-shot: 5000 episodes on random features, 512 wide. Linear probe: the whole search, and scikit-learn's where it is
installed, on 1000 pictures of the train split (800 to learn from, 200 to validate on) of a set with ten classes
such as CIFAR-10, by default the built-in scenes-colours. `--model` is anything that `diffclip evaluate` takes; its
features count for nothing in the times but for how hard they are to separate.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from benchmarks.about import about
from diffclip.data.evaluation_sets import open_set
from diffclip.errors import InputError
from diffclip.evaluation.features import FeatureReader, Features
from diffclip.evaluation.few_shot import EPISODES, few_shot
from diffclip.evaluation.linear_probe import SOLVERS, check_solver, linear_probe
from diffclip.evaluation.splits import stratified_split
from diffclip.files import write_text
from diffclip.model_source import load_for_use

PICTURES, WIDTH, CLASSES, EACH = 1000, 512, 20, 100


def time_few_shot() -> dict[str, float]:
    """Seconds for all episodes on random features."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES).repeat(EACH)
    train, test = (
        Features(name, torch.randn(len(labels), WIDTH, generator=generator), labels)
        for name in ("train", "test")
    )
    start = time.perf_counter()
    (score,) = few_shot(train, test, [str(number) for number in range(CLASSES)])
    return {"seconds": time.perf_counter() - start, "episodes": EPISODES, "accuracy": score.value}


def time_probe(features: Features, classnames: list[str], solver: str) -> dict[str, object]:
    """Seconds for the whole search and the last fit."""
    learnt, held = stratified_split(features.labels, seed=0)
    train, validation = features.take(learnt, "train"), features.take(held, "validation")
    start = time.perf_counter()
    result = linear_probe(train, validation, validation, classnames, solver=solver)
    return {
        "seconds": time.perf_counter() - start,
        "shape": list(features.values.shape),
        "cost": result.cost,
        "fits": [fit.seconds for fit in result.fits],
        "iterations": [fit.iterations for fit in result.fits],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", default="scenes-colours", help="a folder with a train split, or a built-in set"
    )
    parser.add_argument("--model", default="CLIP-ViT-B-32")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    options.device = "cpu"
    torch.set_num_threads(options.threads)
    rows: dict[str, dict[str, object]] = {"few-shot": dict(time_few_shot())}
    loaded = load_for_use(options.model, image_size=options.image_size)
    data = open_set(options.data, "train")
    features = FeatureReader(loaded.model, loaded.preprocess).read(data)
    chosen = torch.randperm(len(features.labels), generator=torch.Generator().manual_seed(0))[:PICTURES]
    features = features.take(chosen, features.where)
    for solver in SOLVERS:
        try:
            check_solver(solver)
        except InputError as error:
            print(error)
            continue
        rows[f"linear-probe {solver}"] = time_probe(features, data.classnames, solver)
    for name, row in rows.items():
        print(f"{name:24}{row['seconds']:8.2f} s  {row.get('shape', f'{EPISODES} episodes, {WIDTH} wide')}")
    result = {"about": about("probe", options), "model": loaded.label, "data": data.name, "rows": rows}
    write_text(options.output / "probe_cpu.json", json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

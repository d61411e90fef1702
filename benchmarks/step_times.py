"""Write timing.json of a study: a training step of every arm, relative to the first arm's, while the arms take turns.

python -m benchmarks.step_times experiments/study_d/spec.yaml --device cpu --threads 1 [--seconds 600]

A turn is three steps after one to warm up, on a random batch, in the recipe's precision. A ratio is taken within a
round, so that a slow moment of the machine affects both arms. Arms with equal computations show the noise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.stats import binom

from benchmarks.about import about, add_common_options, parser_of, write_json
from diffclip.benchmarking.timing import take_turns
from diffclip.study.results import TIMING_FILE
from diffclip.study.spec import read_study
from diffclip.training.plan import make_step
from diffclip.training.recipe import Recipe

STEPS = 3  # per turn
ROUNDS = 15  # at most


def make_turn(recipe: Recipe, device: torch.device) -> Callable[[], float]:
    """Make an arm's model and optimizer; return a function that takes a turn and returns the milliseconds of a step."""
    step = make_step(recipe, device, recipe.batch_size)

    def turn() -> float:
        step()
        return 1000 * sum(step() for _ in range(STEPS)) / STEPS

    return turn


def summarize(times: Sequence[float], baseline: Sequence[float]) -> dict[str, float]:
    """Summarize an arm's milliseconds by round: their median, and the median ratio to the baseline with its
    distribution-free 95 % interval (with fewer than six rounds the whole range, which covers less)."""
    ratios = sorted(own / other for own, other in zip(times, baseline, strict=True))
    outside = max(0, int(binom.ppf(0.025, len(ratios), 0.5)) - 1)  # values on either side of the interval
    summary = {"milliseconds": round(float(np.median(times)), 3), "ratio": round(float(np.median(ratios)), 4)}
    return summary | {"low": round(ratios[outside], 4), "high": round(ratios[-1 - outside], 4)}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("spec", type=Path)
    add_common_options(parser, seconds=600)
    parser.set_defaults(output=None)  # the folder of the spec
    options = parser.parse_args()
    study = read_study(options.spec)
    torch.set_num_threads(options.threads)
    samplers = {arm: make_turn(recipe, torch.device(options.device)) for arm, recipe in study.recipes.items()}
    times, failures = take_turns(samplers, ROUNDS, options.seconds)
    if failures:
        sys.exit("\n".join(f"a step of {arm} cannot be timed: {reason}" for arm, reason in failures.items()))
    baseline = times[next(iter(study.arms))]
    arms = {arm: summarize(own, baseline) for arm, own in times.items()}
    measured = about("step_times", options) | {"rounds": len(baseline), "arms": arms}
    write_json((options.output or options.spec.parent) / TIMING_FILE, measured)


if __name__ == "__main__":
    main()

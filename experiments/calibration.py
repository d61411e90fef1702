"""How often does `diffclip report` call two equal arms different? The rate over made studies without any difference.

    python -m experiments.calibration [--studies 1000]

Each study has three arms with the same true value, 3 to 20 runs an arm, and spreads over runs that differ up to
fivefold. The primary contrast is tested as declared, paired or by Welch, and as loose records are. About 5 % of tests
should say "better" or "worse"; a rate above 5 % by more than its error would mean that verdicts cannot be trusted.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd

from diffclip.evaluation.family import Family
from diffclip.evaluation.statistics import wilson
from diffclip.evaluation.verdicts import compute_verdicts

ENDPOINT = {"task": "retrieval", "dataset": "made", "metric": "mean_recall"}
ARMS = ("DiffCLIP", "CLIP", "CLIP-gated")


def make_study(generator: np.random.Generator, same_runs: bool) -> pd.DataFrame:
    """Draw the records of a study: a row per run, with the effect of each seed shared by all arms."""
    counts = generator.integers(3, 21, len(ARMS))
    counts = np.full(len(ARMS), counts[0]) if same_runs else counts
    spreads = 0.01 * generator.uniform(1, 5, len(ARMS))
    seeds = 0.01 * generator.standard_normal(20)
    parts = [
        pd.DataFrame({"model": arm, "seed": range(count), "value": 0.4 + seeds[:count]})
        for arm, count in zip(ARMS, counts, strict=True)
    ]
    frame = pd.concat(parts, ignore_index=True)
    frame["value"] += frame["model"].map(dict(zip(ARMS, spreads, strict=True))) * generator.standard_normal(
        len(frame)
    )
    return frame.assign(**ENDPOINT, split="test", chance=np.nan, count=1000, low=np.nan, high=np.nan)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=1000)
    studies = parser.parse_args().studies
    generator = np.random.default_rng(0)
    contrasts = [ARMS[:2], (ARMS[2], ARMS[1])]
    declared = {
        "contrasts": contrasts,
        "endpoints": {"primary": ENDPOINT | {"arm": ARMS[0], "against": ARMS[1]}},
    }
    families = {
        "declared paired, same runs": (True, Family(**declared, test="paired")),
        "declared Welch, other numbers of runs": (False, Family(**declared, test="welch")),
        "loose records": (False, Family(endpoints={"secondary": [ENDPOINT]}, contrasts=contrasts[:1])),
    }
    for name, (same_runs, family) in families.items():
        verdicts = [
            compute_verdicts(make_study(generator, same_runs), family)["verdict"].iloc[0]
            for _ in range(studies)
        ]
        found = sum(verdict in ("better", "worse") for verdict in verdicts)
        low, high = wilson(found, studies)
        print(f"{name}: {100 * found / studies:.1f} % of {studies} ({100 * low:.1f} to {100 * high:.1f})")


if __name__ == "__main__":
    main()

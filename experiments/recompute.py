"""Test the verdicts of the experiments once more, with csv and scipy alone: nothing of diffclip is imported.

python -m experiments.recompute [NAME ...]

Each row of verdicts.csv with a paired test is computed from results.csv: difference, interval and p must agree to five
digits.
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from scipy.stats import ttest_rel

_KEYS = ("model", "task", "dataset", "metric", "study", "map", "epsilon")


def check(folder: Path) -> int:
    """Compare every paired, unpooled row of an experiment; return their number."""
    splits, split = {}, ""
    for line in (folder / "protocols.yaml").read_text("utf-8").splitlines():
        if not line.startswith(" "):
            key = line.rstrip(":")
        elif line.startswith("  split: "):
            splits[key] = line.removeprefix("  split: ").strip("'\"")
    values = defaultdict(lambda: defaultdict(list))
    with (folder / "results.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            split = splits[row["protocol"]]
            run = (row["seed"], row.get("fold", ""))
            key = tuple(row.get(name) or "" for name in _KEYS)
            values[*key, split][run].append(float(row["value"] or "nan"))
    checked = 0
    with (folder / "verdicts.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row.get("test") != "paired" or row.get("pooled") == "True":
                continue
            arms = [_runs(values, row, row[side]) for side in ("arm", "against")]
            runs = sorted(set(arms[0]) & set(arms[1]))
            first, second = ([arm[run] for run in runs] for arm in arms)
            result = ttest_rel(first, second)
            interval = result.confidence_interval(0.95)
            for name, value in (
                ("difference", fmean(first) - fmean(second)),
                ("low", interval.low),
                ("high", interval.high),
                ("p", result.pvalue),
            ):
                told = float(row[name])
                if abs(told - value) > 1e-5 * max(abs(value), 1e-3 if name != "p" else abs(value)):
                    sys.exit(
                        f"{folder.name}: {row['arm']} − {row['against']}: {name} {told}, and {value} here"
                    )
            checked += 1
    return checked


def _runs(values, row, arm):
    """The value of each run of an arm; "k16 - k0" is the difference of two studies."""

    def of(study):
        fields = {**row, "model": arm, "study": study}
        key = tuple(fields.get(name) or "" for name in _KEYS)
        return {run: fmean(own) for run, own in values[*key, row["split"]].items()}

    later, _, earlier = (row.get("study") or "").partition(" - ")
    if not earlier:
        return of(later)
    return {run: value - of(earlier)[run] for run, value in of(later).items() if run in of(earlier)}


if __name__ == "__main__":
    for table in sorted(Path(__file__).parent.glob("*/verdicts.csv")):
        if table.parent.name in sys.argv[1:] or not sys.argv[1:]:
            print(f"{table.parent.name}: {check(table.parent)} rows agree")

"""Test the verdicts of the experiments once more, with csv and scipy alone: nothing of diffclip is imported.

python -m experiments.recompute [NAME ...]

Each row of verdicts.csv with a paired test is computed from results.csv: difference, interval and p must agree to five
digits. So must each p that is corrected over a family: of a spec, or of a pair of models without one. Where an arm has
several learning rates, its value in each fold must be that at the rate with the best primary endpoint in the others.
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
    _check_rates(folder, values)
    with (folder / "verdicts.csv").open(encoding="utf-8") as file:
        tested = [row for row in csv.DictReader(file) if row.get("test")]
    families = defaultdict(list)
    for row in tested:
        pair = () if (folder / "spec.yaml").is_file() else (row["arm"], row["against"])
        families[row["primary"], pair].append(row)
    for family in families.values():
        largest = 0.0
        for place, row in enumerate(sorted(family, key=lambda row: float(row["p"]))):
            largest = max(largest, min(1.0, (len(family) - place) * float(row["p"])))
            _agree(folder, row, p_corrected=largest)
    rows = [row for row in tested if row["test"] == "paired" and row["pooled"] != "True"]
    for row in rows:
        arms = [_runs(values, row, row[side]) for side in ("arm", "against")]
        runs = sorted(set(arms[0]) & set(arms[1]))
        first, second = ([arm[run] for run in runs] for arm in arms)
        test = ttest_rel(first, second)
        low, high = test.confidence_interval(0.95)
        _agree(folder, row, difference=fmean(first) - fmean(second), low=low, high=high, p=test.pvalue)
    return len(rows)


def _check_rates(folder, values):
    """Choose the rate of each arm and fold once more, by mean recall, and compare the values with the table."""
    recalls = defaultdict(dict)
    for (model, _, _, metric, *_), runs in values.items():
        if "@" in model and metric == "mean_recall":
            recalls[model] |= {fold: fmean(own) for (_, fold), own in runs.items() if fold}
    for (arm, *measure), runs in values.items():
        rates = [model for model in recalls if model.startswith(f"{arm}@")]
        for (seed, fold), own in runs.items():
            if not rates or not fold:
                continue
            others = {rate: fmean(v for other, v in recalls[rate].items() if other != fold) for rate in rates}
            best = max(others, key=others.get)
            if own != values[best, *measure][seed, fold]:
                sys.exit(f"{folder.name}: {arm}, fold {fold}: the table has not the value of {best}")


def _agree(folder, row, **values):
    for name, value in values.items():
        told = float(row[name])
        if abs(told - value) > 1e-5 * (abs(value) if name.startswith("p") else max(abs(value), 1e-3)):
            sys.exit(f"{folder.name}: {row['arm']} − {row['against']}: {name} {told}, and {value} here")


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

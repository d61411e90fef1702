"""Verdicts: which of two arms is better at which measure, tested once and stored beside the records.

A `Family` declares what is compared, and `compute_verdicts` tests it. Nothing else tests arms: tables, figures and
pages read its rows.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diffclip.errors import InputError
from diffclip.evaluation.family import Contrast, Endpoint, Family, Share
from diffclip.evaluation.records import MEASURE
from diffclip.evaluation.statistics import ALPHA, above_chance, compare_pooled, compare_runs, holm, wilson
from diffclip.files import digest_of, read_text, write_text
from diffclip.names import metric_of

if TYPE_CHECKING:
    import pandas as pd

SPEC_FILE, VERDICTS_FILE = "spec.yaml", "verdicts.csv"
IDENTITY = ("study", *MEASURE)
"""The fields of a measure in a table that may hold several studies."""

_DIFFERS = {"data": "training data", "steps": "training steps", "init": "init", "count": "test items"}
_MINUS = " - "
_NUMBERS = ("value", "value_against", "difference", "low", "high", "p", "p_corrected", "p_equivalent")
_COLUMNS = (
    *("arm", "against", *IDENTITY, "n_a", "n_b", *_NUMBERS, "margin", "verdict", "test", "pooled", "primary"),
    *("chance", "at_chance", "differs", "note"),
)


def compute_verdicts(frame: pd.DataFrame, family: Family, finished: bool = True) -> pd.DataFrame:
    """Test a family: one row per contrast and measure.

    Args:
        frame: records as `load_records` returns them, of the last checkpoint of each run, or derived values of the same
            form; `study` and `fold` are optional columns.
        finished: False while runs of the study are missing; then no row has a p or a verdict.

    Returns:
        arm, against, the fields of the measure, n_a and n_b (runs of arm and against), value and value_against (means
        over these runs), difference with its 95 % interval, p, p_corrected (Holm over all rows but the primary one),
        p_equivalent (two one-sided tests, corrected likewise, apart from the differences), margin, verdict, test
        ("paired", "welch", or "pooled" for unpaired runs with one variance), pooled, primary, chance (mean over the two
        arms), at_chance (both arms are measured, and neither is shown to be above chance), differs (how the arms'
        records differ, except in the arm), note.

    Raises:
        InputError: an endpoint does not name one measure of the frame, or values are not finite.
    """
    import pandas as pd

    frame = frame.reindex(columns=list(dict.fromkeys([*frame.columns, *IDENTITY, "fold"])))
    rows = [
        {"arm": contrast[0], "against": contrast[1], **_compare(found, endpoint, contrast, family)}
        for endpoint in family.measures
        for found in [_find(frame, endpoint)]
        for contrast in family.all_contrasts
    ]
    verdicts = pd.DataFrame(rows, columns=list(_COLUMNS))
    verdicts["primary"] = (verdicts.index == 0) & (family.endpoints.primary is not None)
    if not finished:
        verdicts = verdicts.assign(p=math.nan, p_equivalent=math.nan, verdict="unfinished")
    secondary = ~verdicts["primary"]
    for name, corrected in (("p", "p_corrected"), ("p_equivalent", "p_equivalent")):
        p = verdicts[name].astype("float64")
        verdicts[corrected] = p.mask(secondary, holm(p.where(secondary)))
    open_rows = verdicts["verdict"].isna()
    verdicts.loc[open_rows, "verdict"] = [_word(row) for row in verdicts[open_rows].itertuples()]
    return verdicts


def write_verdicts(folder: Path, verdicts: pd.DataFrame) -> None:
    """Write the verdicts beside the results in `folder`, with the digests of results and spec."""
    table = verdicts[list(_COLUMNS)].assign(of=verdicts["of"].map("; ".join, na_action="ignore"))
    table = table.replace("", math.nan).dropna(axis="columns", how="all").assign(**_digests(folder))
    write_text(folder / VERDICTS_FILE, table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def read_verdicts(folder: Path) -> pd.DataFrame:
    """Read the verdicts beside the results in `folder`, or raise `InputError`: there are none, or they are of other
    results or of another spec."""
    import pandas as pd

    file = folder / VERDICTS_FILE
    table = pd.read_csv(io.StringIO(read_text(file)))
    for name, digest in _digests(folder).items():
        if name not in table or not table[name].astype(str).eq(digest).all():
            of = "these results" if name == "results" else "this spec"
            raise InputError(f"{file} is not of {of}: run diffclip report {folder}, which writes it")
    table = table.reindex(columns=list(_COLUMNS))
    texts = {name: table[name].astype(object).fillna("") for name in ("differs", "note")}
    of = table["of"].map(lambda names: tuple(names.split("; ")), na_action="ignore")
    return table.assign(**texts, of=of)


def measure_key(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a key that records and verdicts of one measure share."""
    import pandas as pd

    values = (fields.get(name) for name in IDENTITY)  # NaN and NA are no values
    return tuple(value if isinstance(value, (str, tuple)) or not pd.isna(value) else None for value in values)


def _digests(folder: Path) -> dict[str, str]:
    results = sorted(file for file in folder.rglob("results.*") if file.suffix in (".csv", ".jsonl"))
    spec = [file for file in (folder / SPEC_FILE,) if file.is_file()]
    return {
        name: digest_of([[file.relative_to(folder).as_posix(), read_text(file)] for file in files])[:16]
        for name, files in (("results", results), ("spec", spec))
    }


def _find(frame: pd.DataFrame, endpoint: Endpoint) -> pd.DataFrame:
    """Return the records of an endpoint; empty if there are none."""
    given = {name: value for name in IDENTITY if (value := getattr(endpoint, name)) is not None}
    studies = str(given.get("study", "")).split(_MINUS)
    rows = frame
    for name, value in given.items():
        if name != "study" or len(studies) == 1:
            rows = rows[rows[name].isin([value])]
    if len(studies) == 2:
        rows = _subtract(rows, *studies)
    for name in IDENTITY:  # a field that is not given is best absent
        if name not in given and rows[name].isna().any():
            rows = rows[rows[name].isna()]
        if rows[name].nunique() > 1:
            values = " and ".join(str(value) for value in rows[name].unique()[:3])
            raise InputError(
                f"endpoint {endpoint.task} {endpoint.metric} on {endpoint.dataset} is measured with {name} "
                f"{values}: give the endpoint a {name}"
            )
    return rows


def _subtract(rows: pd.DataFrame, later: str, earlier: str) -> pd.DataFrame:
    """Derive a measure: the value in one study minus that in another, for each model and run."""
    keys = [*MEASURE, "model", "seed", "fold"]
    known = rows[rows["study"].isin([later, earlier])]
    means = known.groupby([*keys, "study"], dropna=False, sort=False)["value"].mean().unstack("study")
    if not {later, earlier} <= set(means):
        return rows[:0]
    changes = (means[later] - means[earlier]).dropna().rename("value").reset_index()
    return changes.assign(study=f"{later}{_MINUS}{earlier}").reindex(columns=rows.columns)


def _compare(found: pd.DataFrame, endpoint: Endpoint, contrast: Contrast, family: Family) -> dict[str, Any]:
    """Compare two arms at one measure; `verdict` is None if there is a test."""
    arms = [found[found["model"] == arm] for arm in contrast]
    first = (arms[0] if len(arms[0]) else arms[1]).head(1)
    a, b = (_by_run(rows, family.unit) for rows in arms)
    paired = family.test == "paired" or (family.test is None and set(a.index) == set(b.index))
    note = ""
    if paired and len(a) and len(b):
        shared = a.index.intersection(b.index)
        if left_out := len(a) + len(b) - 2 * len(shared):
            note = f"{left_out} run{'s' * (left_out > 1)} without a partner left out"
        a, b = a.loc[shared], b.loc[shared]
    # of these two arms: in faithfulness it is another for each model
    chance, value, value_against = found["chance"][found["model"].isin(contrast)].mean(), a.mean(), b.mean()
    row = {name: first[name].iloc[0] if len(first) else getattr(endpoint, name) for name in IDENTITY}
    row |= {"n_a": len(a), "n_b": len(b), "value": value, "value_against": value_against, "note": note}
    row |= {"difference": value - value_against, "differs": _differences(*arms), "pooled": False}
    has_chance = not math.isnan(chance) and metric_of(endpoint.metric).better != 0
    at_chance = has_chance and all(len(rows) > 0 and _is_at_chance(rows, family.unit) for rows in arms)
    row |= {"chance": chance, "at_chance": at_chance, "verdict": _untested(contrast, arms, len(a), len(b))}
    if row["verdict"]:
        return row
    margin = endpoint.margin
    if isinstance(margin, Share):
        margin = margin.share * abs(float(value_against))
    unpaired = "pooled" if family.pooled else "welch"
    row |= {"margin": margin, "test": "paired" if paired else unpaired, "pooled": family.pooled}
    if family.pooled:
        pool = found[found["model"].isin([name for pair in family.all_contrasts for name in pair])]
        runs = pool.groupby(["model", _run_names(pool, family.unit)])["value"].mean().reset_index()
        is_used = ~runs["model"].isin(contrast) | runs["run"].isin(a.index.union(b.index))
        runs = runs[is_used]  # without those that the note names
        test = compare_pooled(runs, *contrast, paired, margin)
    else:
        test = compare_runs(a, b, paired, margin)
    return row | test._asdict()


def _untested(contrast: Contrast, arms: Sequence[pd.DataFrame], n_a: int, n_b: int) -> str | None:
    """Say why two arms are not tested; None if both have two runs."""
    missing = [name for name, rows in zip(contrast, arms, strict=True) if rows.empty]
    if missing:
        return "not measured" if len(missing) == 2 else f"not measured for {missing[0]}"
    if not n_a:
        return "no run in common"
    alone = [name for name, count in zip(contrast, (n_a, n_b), strict=True) if count < 2]
    if not alone:
        return None
    return "one run each" if len(alone) == 2 else f"one run of {alone[0]}"


def _run_names(rows: pd.DataFrame, unit: str) -> pd.Series:
    """Name the run of each record: its seed and fold, or for the unit "fold" its fold."""
    folds = rows["fold"].astype("string").fillna("")
    names = folds if unit == "fold" else rows["seed"].astype("string").fillna("?") + "/" + folds
    return names.rename("run")


def _by_run(rows: pd.DataFrame, unit: str) -> pd.Series:
    """Average draws (and for the unit "fold" seeds): one value per run, by its name in order."""
    return rows["value"].astype("float64").groupby(_run_names(rows, unit)).mean()


def _is_at_chance(rows: pd.DataFrame, unit: str) -> bool:
    """Tell whether an arm is not shown to be above chance. Values without an interval over items, such as mean recall,
    take Wilson's for their count of items."""
    low, high = rows["low"].astype("float64"), rows["high"].astype("float64")
    if (low + high).isna().any():
        pairs = zip(rows["value"].clip(0, 1), rows["count"].clip(lower=1), strict=True)
        bounds = np.array([wilson(value * count, count) for value, count in pairs])
        low, high = low.mask(low.isna(), bounds[:, 0]), high.mask(high.isna(), bounds[:, 1])
    values, lows, highs = (_by_run(rows.assign(value=column), unit) for column in (rows["value"], low, high))
    sign, chance = metric_of(rows["metric"].iloc[0]).better, float(rows["chance"].mean())
    return above_chance(sign * values, sign * chance, lows, highs) >= ALPHA


def _differences(*arms: pd.DataFrame) -> str:
    """Say in which facts the records of two arms differ; unknown facts do not count."""
    texts = []
    for name, words in _DIFFERS.items():
        known = [sorted(arm[name].dropna().unique()) if name in arm else [] for arm in arms]
        if name == "steps":  # the best checkpoint may be an earlier one
            known = [values[-1:] for values in known]
        if all(known) and known[0] != known[1]:
            lists = (", ".join(v if isinstance(v, str) else f"{v:,}" for v in values) for values in known)
            texts.append(f"{words} {' and '.join(lists)}")
    return "; ".join(texts)


def _word(row: Any) -> str:
    """Choose the verdict of a row with a test."""
    if row.p_corrected < ALPHA:
        words = {1: ("worse", "better"), -1: ("better", "worse"), 0: ("lower", "higher")}
        return words[metric_of(row.metric).better][row.difference > 0]
    is_equal = row.difference == row.low == row.high and abs(row.difference) <= 1e-12
    return "equivalent" if is_equal or row.p_equivalent < ALPHA else "undecided"

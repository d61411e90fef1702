"""Verdicts: which of two arms is better at which measure, tested once and stored beside the records.

A `Family` declares what is compared, and `compute_verdicts` tests it. Nothing else tests arms: tables, figures and
pages read its rows. A study's spec declares its family so (`family_of`):

    endpoints:
      primary: {arm: DiffCLIP, against: CLIP, task: retrieval, dataset: flickr8k, metric: mean_recall}
      secondary:
      - {task: few-shot, dataset: caltech101, metric: acc1, margin: {share: 0.05}}
    contrasts: [[DiffCLIP, CLIP], [DiffCLIP-vision, CLIP]]
    test: welch
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from diffclip.config import explain
from diffclip.errors import InputError
from diffclip.evaluation.records import MEASURE
from diffclip.evaluation.statistics import (
    ALPHA,
    above_chance,
    compare_pooled,
    compare_runs,
    holm,
    wilson,
)
from diffclip.files import digest_of, read_text, write_text

if TYPE_CHECKING:
    import pandas as pd

VERDICTS_FILE = "verdicts.csv"
Contrast = tuple[str, str]
"""(arm, against)."""
IDENTITY = ("study", *MEASURE)
"""The fields of a measure in a table that may hold several studies."""

_LOWER_IS_BETTER = ("attack_success", "background10", "deletion_auc", "drop", "local_lipschitz")
_DESCRIBING = (
    *(
        "class_token",
        "effective_patches",
        "entropy",
        "map_correlation",
        "top10",
        "yes_ratio",
        "neither_ratio",
    ),
    *("gradient_cosine", "high_norm_share", "negative_weight", "sink_ratio", "sink_value_norm"),
    *("head_redundancy", "noise_correlation", "output_redundancy"),
)
_DIFFERS = {"data": "training data", "steps": "training steps", "init": "init", "count": "test items"}
_MINUS = " - "
_NUMBERS = ("value", "value_against", "difference", "low", "high", "p", "p_corrected", "p_equivalent")
_COLUMNS = (
    *("arm", "against", *IDENTITY, "n_a", "n_b", *_NUMBERS, "margin", "verdict", "test", "pooled", "primary"),
    *("chance", "at_chance", "differs", "note"),
)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Share(_Part):
    """A margin as a share of the baseline's value."""

    share: float = Field(gt=0, lt=1)


class Endpoint(_Part):
    """A measure to compare, and its margin of equivalence.

    The fields are those of a record. A field that is not given has to follow from the others.

    Attributes:
        study: the study of the records, if they are of several. "k16 - k0" is a derived measure: the value in study
            k16 minus that in study k0, for each model and run.
        margin: differences inside ±margin count as equivalent: a fraction (0.01 is a point), or a share of the
            baseline. Without one nothing is called equivalent.
    """

    task: str
    dataset: str
    metric: str
    study: str | None = None
    split: str | None = None
    classes: int | None = None
    templates: int | None = None
    of: tuple[str, ...] | None = None
    corruption: str | None = None
    severity: int | None = None
    epsilon: float | None = None
    layer: int | None = None
    head: int | None = None
    map: str | None = None
    margin: Annotated[float, Field(gt=0)] | Share | None = None


class Primary(Endpoint):
    """The endpoint and the contrast that are tested at 5 % without correction."""

    arm: str
    against: str

    @property
    def endpoint(self) -> Endpoint:
        """The measure alone."""
        return Endpoint(**self.model_dump(exclude={"arm", "against"}))


class Family(_Part):
    """The comparisons that are corrected together: every contrast at every endpoint, except the primary one.

    Attributes:
        secondary: None for the headline measures of the records, which `diffclip report` chooses.
        test: a t test over runs, paired by run or Welch's; None: paired if both arms have the same runs.
        unit: what counts as a run: each seed (of each fold), or each fold (its seeds averaged).
        pooled: pool the residual over all arms, for designs of two or three seeds.
    """

    primary: Primary | None = None
    secondary: tuple[Endpoint, ...] | None = None
    contrasts: tuple[Contrast, ...] = ()
    test: Literal["paired", "welch"] | None = None
    unit: Literal["seed", "fold"] = "seed"
    pooled: bool = False

    @model_validator(mode="after")
    def _check(self) -> Family:
        for arm, against in self.all_contrasts:
            if arm == against:
                raise ValueError(f"{arm} is compared with itself: name two arms")
        return self

    @property
    def all_contrasts(self) -> list[Contrast]:
        """The contrasts, that of the primary endpoint first."""
        first = [(self.primary.arm, self.primary.against)] if self.primary else []
        return list(dict.fromkeys([*first, *self.contrasts]))

    @property
    def endpoints(self) -> list[Endpoint]:
        """The measures, the primary one first; a secondary endpoint of the primary measure is the same."""
        first = [self.primary.endpoint] if self.primary else []
        rest = [one for one in self.secondary or () if not any(_is_same(one, other) for other in first)]
        return list(dict.fromkeys([*first, *rest]))


def _is_same(one: Endpoint, other: Endpoint) -> bool:
    """Tell whether two endpoints can be the same measure: no field that both give differs, nor the study."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in MEASURE]
    return one.study == other.study and all(a == b or None in (a, b) for a, b in pairs)


def family_of(study: Mapping[str, Any]) -> Family:
    """Return the family that the fields of a study declare; without secondary endpoints these are the headlines.

    Raises:
        InputError: the fields declare none.
    """
    declared = {key: study[key] for key in ("contrasts", "test", "unit", "pooled") if key in study}
    endpoints = dict(study.get("endpoints") or {})
    try:
        return Family.model_validate(endpoints | {"secondary": endpoints.get("secondary") or None} | declared)
    except ValidationError as error:
        raise InputError(f"the endpoints of the study: {explain(error)}") from None


def direction(metric: str) -> int:
    """Return 1 if a larger value of a metric is better, −1 if a smaller one is, 0 if neither is."""
    return 0 if metric in _DESCRIBING else -1 if metric in _LOWER_IS_BETTER else 1


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
        ("paired" or "welch"), pooled, primary, chance, at_chance (neither arm is shown to be above chance), differs
        (how the arms' records differ, except in the arm), note.

    Raises:
        InputError: an endpoint does not name one measure of the frame, or values are not finite.
    """
    import pandas as pd

    frame = frame.reindex(columns=list(dict.fromkeys([*frame.columns, *IDENTITY, "fold"])))
    rows = []
    for number, endpoint in enumerate(family.endpoints):
        found = _find(frame, endpoint)
        for position, contrast in enumerate(family.all_contrasts):
            names = {"arm": contrast[0], "against": contrast[1]}
            is_primary = family.primary is not None and number == position == 0
            rows.append(names | {"primary": is_primary} | _compare(found, endpoint, contrast, family))
    verdicts = pd.DataFrame(rows, columns=list(_COLUMNS))
    tested = verdicts["verdict"].isna()
    if not finished:
        verdicts.loc[:, ["p", "p_equivalent"]] = math.nan
        verdicts["verdict"] = "unfinished"
    secondary = ~verdicts["primary"].astype(bool)
    verdicts["p_corrected"] = verdicts["p"].mask(secondary, holm(verdicts["p"].where(secondary)))
    equivalence = verdicts["p_equivalent"]
    verdicts["p_equivalent"] = equivalence.mask(secondary, holm(equivalence.where(secondary)))
    if finished:
        verdicts.loc[tested, "verdict"] = [_word(row) for row in verdicts[tested].itertuples()]
    return verdicts


def write_verdicts(folder: Path, verdicts: pd.DataFrame, family: Family) -> None:
    """Write the verdicts beside the results in `folder`, with the digests of results and family."""
    table = verdicts[list(_COLUMNS)].assign(of=verdicts["of"].map("; ".join, na_action="ignore"))
    table = table.replace("", math.nan).dropna(axis="columns", how="all").assign(**_digests(folder, family))
    write_text(folder / VERDICTS_FILE, table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def read_verdicts(folder: Path, family: Family) -> pd.DataFrame:
    """Read the verdicts beside the results in `folder`.

    Raises:
        InputError: there are none, or they are of other results or of another family.
    """
    import pandas as pd

    file = folder / VERDICTS_FILE
    table = pd.read_csv(io.StringIO(read_text(file)))
    for name, digest in _digests(folder, family).items():
        if name not in table or not table[name].astype(str).eq(digest).all():
            what = "results" if name == "results" else "endpoints of the study"
            raise InputError(f"{file} is not of these {what}: run diffclip report {folder}, which writes it")
    table = table.reindex(columns=list(_COLUMNS))
    texts = {name: table[name].astype(object).fillna("") for name in ("differs", "note")}
    return table.assign(
        **texts, of=table["of"].map(lambda names: tuple(names.split("; ")), na_action="ignore")
    )


def measure_key(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a key that records and verdicts of one measure share."""
    import pandas as pd

    values = (fields.get(name) for name in IDENTITY)
    return tuple(
        value if isinstance(value, (str, tuple)) or not pd.isna(value) else None  # NaN and NA are no values
        for value in values
    )


def _digests(folder: Path, family: Family) -> dict[str, str]:
    files = sorted(file for file in folder.rglob("results.*") if file.suffix in (".csv", ".jsonl"))
    results = [[file.relative_to(folder).as_posix(), read_text(file)] for file in files]
    spec = digest_of(family.model_dump(mode="json"))
    return {"results": digest_of(results)[:16], "spec": spec[:16]}


def _find(frame: pd.DataFrame, endpoint: Endpoint) -> pd.DataFrame:
    """Return the records of an endpoint; empty if there are none."""
    given = {name: value for name in IDENTITY if (value := getattr(endpoint, name)) is not None}
    studies = str(given.get("study", "")).split(_MINUS)
    if len(studies) == 2:
        del given["study"]
    rows = frame
    for name, value in given.items():
        rows = rows[rows[name].map(value.__eq__) if name == "of" else rows[name].eq(value).fillna(False)]
    if len(studies) == 2:
        rows = _subtract(rows, *studies)
    for name in IDENTITY:  # a field that is not given is best absent
        if name not in given and rows[name].isna().any():
            rows = rows[rows[name].isna()]
    several = [name for name in IDENTITY if rows[name].nunique() > 1]
    if several:
        values = " and ".join(str(value) for value in rows[several[0]].unique()[:3])
        raise InputError(
            f"endpoint {endpoint.task} {endpoint.metric} on {endpoint.dataset} is measured with {several[0]} "
            f"{values}: give the endpoint a {several[0]}"
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
    """Compare two arms at one measure; `verdict` stays open if there is a test."""
    arms = [found[found["model"] == arm] for arm in contrast]
    first = (arms[0] if len(arms[0]) else arms[1]).head(1)
    row: dict[str, Any] = {
        name: first[name].iloc[0] if len(first) else getattr(endpoint, name) for name in IDENTITY
    }
    a, b = (_by_run(rows, family.unit) for rows in arms)
    same = set(a.index) == set(b.index)
    paired = family.test == "paired" or (family.test is None and same)
    shared = a.index.intersection(b.index)
    left_out = len(a) + len(b) - 2 * len(shared) if paired and len(a) and len(b) else 0
    if left_out:
        a, b = a.loc[shared], b.loc[shared]
    row["note"] = f"{left_out} run{'s' * (left_out > 1)} without a partner left out" if left_out else ""
    row |= {"n_a": len(a), "n_b": len(b), "value": a.mean(), "value_against": b.mean()}
    row |= {"difference": row["value"] - row["value_against"], "differs": _differences(*arms)}
    row["chance"] = found["chance"].mean()
    has_chance = not math.isnan(row["chance"]) and direction(endpoint.metric) != 0
    row["at_chance"] = has_chance and all(
        _is_at_chance(rows, family.unit, endpoint.metric) for rows in arms if len(rows)
    )
    row |= {"pooled": False, "verdict": _untested(contrast, len(arms[0]), len(arms[1]), len(a), len(b))}
    if row["verdict"]:
        return row
    margin = endpoint.margin
    if isinstance(margin, Share):
        margin = margin.share * abs(float(row["value_against"]))
    row |= {"margin": margin, "test": "paired" if paired else "welch", "pooled": family.pooled}
    if family.pooled:
        named = {name for pair in family.all_contrasts for name in pair}
        pool = found[found["model"].isin(named)]
        runs = pool.groupby(["model", _run_names(pool, family.unit)])["value"].mean().reset_index()
        test = compare_pooled(runs, *contrast, paired, margin)
    else:
        test = compare_runs(a, b.loc[a.index] if paired else b, paired, margin)
    return row | test._asdict()


def _untested(contrast: Contrast, records_a: int, records_b: int, n_a: int, n_b: int) -> str | None:
    """Say why two arms are not tested; None if both have two runs."""
    if not (records_a and records_b):
        missing = [name for name, count in zip(contrast, (records_a, records_b), strict=True) if not count]
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
    """Average draws (and for the unit "fold" seeds): one value per run, by its name."""
    return rows["value"].astype("float64").groupby(_run_names(rows, unit)).mean()


def _is_at_chance(rows: pd.DataFrame, unit: str, metric: str) -> bool:
    """Tell whether an arm is not shown to be above chance. Values without an interval over items, such as mean recall,
    take Wilson's for their count of items."""
    if rows.empty:
        return True
    low, high = rows["low"].astype("float64"), rows["high"].astype("float64")
    if low.isna().any() or high.isna().any():
        pairs = zip(rows["value"].clip(0, 1), rows["count"].clip(lower=1), strict=True)
        bounds = np.array([wilson(value * count, count) for value, count in pairs])
        low, high = low.mask(low.isna(), bounds[:, 0]), high.mask(high.isna(), bounds[:, 1])
    runs = [_by_run(rows.assign(value=column), unit) for column in (rows["value"], low, high)]
    sign, chance = direction(metric), float(rows["chance"].mean())
    return above_chance(sign * runs[0], sign * chance, runs[1], runs[2]) >= ALPHA


def _differences(rows: pd.DataFrame, other: pd.DataFrame) -> str:
    """Say in which facts the records of two arms differ; unknown facts do not count."""
    texts = []
    for name, words in _DIFFERS.items():
        if name in rows:
            known = [sorted(arm[name].dropna().unique().tolist()) for arm in (rows, other)]
            if name == "steps":  # the best checkpoint may be an earlier one
                known = [values[-1:] for values in known]
            if all(known) and known[0] != known[1]:
                texts.append(f"{words} {' and '.join(_list(values) for values in known)}")
    return "; ".join(texts)


def _list(values: list[Any]) -> str:
    return ", ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in values)


def _word(row: Any) -> str:
    """Choose the verdict of a row with a test."""
    if row.p_corrected < ALPHA:
        sign = direction(row.metric)
        words = {1: ("worse", "better"), -1: ("better", "worse"), 0: ("lower", "higher")}[sign]
        return words[row.difference > 0]
    is_equal = row.difference == row.low == row.high and abs(row.difference) <= 1e-12
    return "equivalent" if is_equal or row.p_equivalent < ALPHA else "undecided"

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
    *("class_token", "effective_patches", "entropy", "map_correlation", "top10", "yes_ratio"),
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
        names = {(one.task, one.dataset, one.metric, one.study) for one in first}
        rest = [
            one for one in self.secondary or () if (one.task, one.dataset, one.metric, one.study) not in names
        ]
        return list(dict.fromkeys([*first, *rest]))


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
    table = verdicts.assign(of=verdicts["of"].map("; ".join, na_action="ignore"))
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
    fields: dict[str, Any] = {name: getattr(endpoint, name) for name in IDENTITY}
    for name in IDENTITY if len(first) else ():
        fields[name] = first[name].iloc[0]
    runs = [_by_run(rows, family.unit) for rows in arms]
    row = fields | {"pooled": False, "differs": _differences(*arms), "note": "", "verdict": None}
    row |= {"n_a": len(runs[0]), "n_b": len(runs[1])}
    same = set(runs[0].index) == set(runs[1].index)
    paired = family.test == "paired" or (family.test is None and same)
    if paired and not same and all(map(len, runs)):
        shared = runs[0].index.intersection(runs[1].index)
        without = sum(map(len, runs)) - 2 * len(shared)
        row["note"] = f"{without} run{'s' * (without > 1)} without a partner left out"
        runs = [own.loc[shared] for own in runs]
    first_runs, second_runs = runs[0].sort_index(), runs[1].sort_index()
    row |= {"n_a": len(first_runs), "n_b": len(second_runs)}
    row["value"], row["value_against"] = first_runs.mean(), second_runs.mean()
    row["difference"] = row["value"] - row["value_against"]
    chance = found["chance"].mean()
    row["chance"] = chance
    if not math.isnan(chance) and direction(endpoint.metric):
        row["at_chance"] = all(_is_at_chance(rows, family.unit, endpoint.metric) for rows in arms)
    else:
        row["at_chance"] = False
    if not all(len(rows) for rows in arms):
        missing = [name for name, rows in zip(contrast, arms, strict=True) if rows.empty]
        row["verdict"] = "not measured" if len(missing) == 2 else f"not measured for {missing[0]}"
        return row
    if min(row["n_a"], row["n_b"]) < 2:
        alone = [name for name, own in zip(contrast, runs, strict=True) if len(own) < 2]
        words = {0: "no run in common", 1: "one run in common"}
        in_common = words[min(row["n_a"], row["n_b"])] if row["note"] else "one run each"
        row["verdict"] = in_common if len(alone) == 2 else f"one run of {alone[0]}"
        return row
    margin = endpoint.margin
    if isinstance(margin, Share):
        margin = margin.share * abs(float(row["value_against"]))
    row |= {"margin": margin, "test": "paired" if paired else "welch", "pooled": family.pooled}
    if family.pooled:
        named = {name for pair in family.all_contrasts for name in pair}
        groups = found[found["model"].isin(named)].groupby("model")
        pool = [
            _by_run(rows, family.unit).rename("value").reset_index().assign(model=m) for m, rows in groups
        ]
        row |= compare_pooled(_concat(pool), *contrast, paired, margin)._asdict()
    else:
        row |= compare_runs(first_runs.to_numpy(), second_runs.to_numpy(), paired, margin)._asdict()
    return row


def _concat(parts: list[pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat(parts, ignore_index=True)


def _by_run(rows: pd.DataFrame, unit: str) -> pd.Series:
    """Average draws (and for the unit "fold" seeds): one value per run, by its name."""
    folds = rows["fold"].astype("string").fillna("")
    names = folds if unit == "fold" else rows["seed"].astype("string").fillna("?") + "/" + folds
    return rows["value"].astype("float64").groupby(names.rename("run")).mean()


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

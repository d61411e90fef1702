"""Differences between models, with intervals, p-values and a verdict word: a row a (measure, contrast)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from diffclip.evaluation.statistics import ALPHA, MARGIN, above_chance, compare_arms, with_verdicts
from diffclip.report.frame import Results, is_share, measures_of, percent, values_of, variant_of

BASELINE, TREATED = "CLIP", "DiffCLIP"
ONE_RUN = "One run each: another seed or processor can turn this around."
PAPER_MODELS = ("CLIP", "DiffCLIP", "DiffCLIP-dynamic", "DiffCLIP-vision")
_SIZE = re.compile(r"-(ViT-\w+-\d+|v\d+x.*)")
Contrast = tuple[str, str]
"""(model, baseline)."""


def contrasts_of(results: Results) -> list[Contrast]:
    """Choose the contrasts: those that the study declares, else every model against the CLIP of its size."""
    models = results.models
    if results.study:
        return [
            (one, other) for one, other in results.study.get("contrasts") or _usual_contrasts(results.study)
        ]
    plain = [model for model in models if variant_of(model) == BASELINE]
    chosen = []
    for model in models:
        wanted = model.replace(variant_of(model), BASELINE, 1)
        against = wanted if wanted in plain else plain[0] if plain else None
        if against is not None and against != model:
            chosen.append((model, against))
    return chosen


def _usual_contrasts(study: dict[str, Any]) -> list[Contrast]:
    """Take every arm that names a baseline against it, and every arm of the models against CLIP."""
    arms = {**study["models"]["arms"], **((study.get("ablations") or {}).get("arms") or {})}
    chosen = [(arm, BASELINE) for arm in study["models"]["arms"] if arm != BASELINE]
    return chosen + [(arm, own["against"]) for arm, own in arms.items() if own.get("against")]


def primary_of(results: Results) -> tuple[int, Contrast] | None:
    """Find the measure and the contrast of the study's pre-declared endpoint; None where there is no study.

    By default DiffCLIP − CLIP on the validation score.
    """
    if results.study is None:
        return None
    declared = {"arm": TREATED, "against": BASELINE, "task": "validation", "metric": "score"}
    declared |= {
        key: value for key, value in (results.study.get("primary") or {}).items() if value is not None
    }
    frame = results.records
    fits = (frame["task"] == declared["task"]) & (frame["metric"] == declared["metric"])
    if declared.get("dataset"):
        fits &= frame["dataset"] == declared["dataset"]
    if not fits.any():
        return None
    return int(frame.loc[fits, "measure"].iloc[0]), (declared["arm"], declared["against"])


def compare(results: Results, measures: Sequence[int], contrasts: Sequence[Contrast]) -> pd.DataFrame:
    """Compare models in several measures; all rows but the study's primary one are corrected together (Holm).

    Returns:
        A row a measure and contrast that was measured: those of `evaluation.statistics.compare_arms`, and `measure`,
        `label`, `panel` (one of the six tasks, or the task), `share`, `model_value`, `model_low`, `model_high` (means
        over seeds of the value and of its item interval), the same of the baseline as `base_…`, `chance`, and
        `not_above_chance`: neither model is shown to be above chance.
    """
    margin = float((results.study or {}).get("margin") or MARGIN)
    primary = primary_of(results)
    values, fields = values_of(results.records), measures_of(results.records)
    parts = []
    for measure in measures:
        own = values[values["measure"] == measure]
        present = set(own["model"])
        here = [contrast for contrast in contrasts if present.issuperset(contrast)]
        if not here:
            continue
        pair = primary[1] if primary and primary[0] == measure else None
        found = compare_arms(own[["model", "seed", "value"]], here, primary=pair, margin=margin)
        row = fields.loc[measure].to_dict()
        share = is_share(row)
        means = own.groupby("model")[["value", "low", "high"]].mean()
        panel = row["dataset"] if row["task"] == "six-tasks" else row["task"]
        found = found.assign(measure=measure, label=row["label"], panel=panel, share=share)
        if not share:
            found["p_equivalent"] = float("nan")
        for name in ("value", "low", "high"):
            found[f"model_{name}"] = found["model"].map(means[name])
            found[f"base_{name}"] = found["against"].map(means[name])
        chance = own["chance"].dropna()
        found["chance"] = chance.mean() if len(chance) else float("nan")
        above = {model: is_above_chance(one) for model, one in own.groupby("model")}
        pairs = [
            {above[one], above[other]} for one, other in zip(found["model"], found["against"], strict=True)
        ]
        found["not_above_chance"] = [False in pair and True not in pair for pair in pairs]
        parts.append(found)
    if not parts:
        return pd.DataFrame()
    return with_verdicts(pd.concat(parts, ignore_index=True))


def is_above_chance(values: pd.DataFrame) -> bool | None:
    """Tell whether a model's values, a row a seed, are shown to be above chance; None without a chance level."""
    known = values.dropna(subset=["chance", "low", "high"])
    if known.empty:
        return None
    return above_chance(known["value"], float(known["chance"].mean()), known["low"], known["high"]) < ALPHA


def verdict_text(row: pd.Series, margin: float = MARGIN) -> str:
    """Word a row's verdict: "better", "equivalent within 1 point", "worse (neither above chance)"."""
    word = str(row["verdict"])
    if word == "equivalent":
        word += f" within {100 * margin:g} point{'s' * (margin != 0.01)}"
    if row["not_above_chance"] and word != "one run":
        word += " (neither shown above chance)"
    return word


def verdict_class(row: pd.Series) -> str:
    """Name the color of a row's verdict; none where nothing was shown to be above chance."""
    return (
        str(row["verdict"]) if row["verdict"] in ("better", "worse") and not row["not_above_chance"] else ""
    )


def headline(results: Results, comparisons: pd.DataFrame) -> str:
    """Sum up in one sentence: the primary endpoint of a study, else how many measures have which verdict."""
    if comparisons.empty:
        models = results.models
        if not models:
            return "No results yet."
        return f"{', '.join(models)}: there is no {BASELINE} to compare with, so nothing is tested."
    first = comparisons.iloc[0]
    if (comparisons["verdict"] == "one run").all():
        unit = " %" if first["share"] else ""
        return (
            f"{first['model']} {percent(first['model_value'], first['share'])}{unit} and {first['against']} "
            f"{percent(first['base_value'], first['share'])}{unit} on {first['label']}. {ONE_RUN}"
        )
    primary = comparisons[comparisons["primary"]]
    if len(primary):
        row = primary.iloc[0]
        return (
            f"{row['model']} − {row['against']} on {row['label']}, the primary endpoint: "
            f"{percent(row['difference'], sign=True)} points (95 % interval {percent(row['low'], sign=True)} to "
            f"{percent(row['high'], sign=True)}, {row['seeds']} seeds): {verdict_text(row)}."
        )
    counts = (
        comparisons["verdict"].mask(comparisons["not_above_chance"], "not shown above chance").value_counts()
    )
    told = ", ".join(f"{word} in {count}" for word, count in counts.items())
    tested = list(dict.fromkeys(comparisons["model"]))
    named = " and ".join(tested) if len(tested) < 3 else f"{len(tested)} models"
    count = f"{len(comparisons)} comparison{'s' * (len(comparisons) > 1)}"
    return f"{named} against {first['against']} in {count} over {_seeds(comparisons)} seeds: {told}."


def is_paper_model(model: str) -> bool:
    """Tell whether a model is one that the paper trained, of any size: no ablation and no change of the recipe."""
    variant = variant_of(model)
    return variant in PAPER_MODELS and (
        model == variant or bool(_SIZE.fullmatch(model.removeprefix(variant)))
    )


def _seeds(comparisons: pd.DataFrame) -> str:
    few, many = comparisons["seeds"].min(), comparisons["seeds"].max()
    return str(few) if few == many else f"{few} to {many}"

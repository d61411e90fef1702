"""Differences between models, with intervals, p-values and a verdict word: one row per (measure, contrast)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from diffclip.evaluation.averages import SIX_TASKS
from diffclip.evaluation.statistics import ALPHA, Contrast, above_chance, compare_arms, with_verdicts
from diffclip.report.frame import Results, headlines, measures_of, values_of
from diffclip.report.names import direction, in_order, is_share, percent, variant_in_name

BASELINE, TREATED = "CLIP", "DiffCLIP"
ONE_RUN = "One run each: another seed or processor can turn this around."
# by direction: replacements for the words of `with_verdicts`, which calls a larger value better
_WORDS = {-1: {"better": "worse", "worse": "better"}, 0: {"better": "higher", "worse": "lower"}}


def contrasts_of(results: Results) -> list[Contrast]:
    """Choose the contrasts: those that the study declares, else every model against the CLIP of its size."""
    if results.study:
        return [(model, against) for model, against in results.study["contrasts"]]
    models = in_order(results.records["model"].unique()) or results.models
    pairs = [(model, clip_of(model, models)) for model in models]
    return [(model, against) for model, against in pairs if against is not None and against != model]


def clip_of(model: str, models: Sequence[str]) -> str | None:
    """Find the CLIP of a model's size among `models`, else the only CLIP; None if there is none.

    If there are several, or if a name contains a run or file in brackets, no other CLIP is known to be trained alike.
    """
    baselines = [name for name in models if variant_in_name(name) == BASELINE]
    baseline = model.replace(variant_in_name(model), BASELINE)
    if baseline in baselines:
        return baseline
    alone = len(baselines) == 1 and not any(name.endswith(")") for name in (model, *baselines))
    return baselines[0] if alone else None


def primary_of(results: Results) -> tuple[int, Contrast] | None:
    """Find the measure and the contrast of the study's pre-declared endpoint; None if it has none of its own."""
    if results.study is None:
        return None
    declared, frame = results.study["endpoints"]["primary"], results.records
    if declared.get("study"):
        return None
    keys = ["task", "dataset", "metric"]
    fitting = frame.loc[(frame[keys] == [declared[key] for key in keys]).all(axis=1), "measure"]
    return None if fitting.empty else (int(fitting.iloc[0]), (declared["arm"], declared["against"]))


def compare(results: Results, measures: Sequence[int], contrasts: Sequence[Contrast]) -> pd.DataFrame:
    """Compare models in several measures; all p-values but the study's primary one are corrected together (Holm).

    Returns:
        A row per measure and contrast that was measured, with the columns of `evaluation.statistics.compare_arms` and
        `measure`, `label`, `panel` (one of the six tasks, or the task), `share`, `margin`, `model_value` and
        `base_value` (means over seeds), `chance`, `not_above_chance` (neither model is shown to be above chance).
    """
    primary = primary_of(results)
    values, fields = values_of(results.records), measures_of(results.records)
    parts = []
    for measure in measures:
        rows = values[values["measure"] == measure]
        present = set(rows["model"])
        tested = [contrast for contrast in contrasts if present.issuperset(contrast)]
        if not tested:
            continue
        pair = primary[1] if primary and primary[0] == measure else None
        table = compare_arms(rows[["model", "seed", "value"]], tested, pair, results.margin)
        row = fields.loc[measure].to_dict()
        share = is_share(row)
        panel = row["dataset"] if row["task"] == SIX_TASKS else row["task"]
        table = table.assign(measure=measure, label=row["label"], panel=panel, share=share)
        table = table.assign(margin=results.margin, chance=rows["chance"].mean())
        if not share:
            table["p_equivalent"] = float("nan")
        table[["model_value", "base_value"]] = [_means(rows, pair) for pair in tested]
        above = {model: is_above_chance(group, row["metric"]) for model, group in rows.groupby("model")}
        pairs = [{above[model], above[against]} for model, against in tested]
        table["not_above_chance"] = [False in pair and True not in pair for pair in pairs]
        parts.append(table)
    if not parts:
        return pd.DataFrame()
    compared = with_verdicts(pd.concat(parts, ignore_index=True))
    for sign, words in _WORDS.items():
        rows = compared["measure"].map(fields["metric"]).map(direction) == sign
        compared.loc[rows, "verdict"] = compared.loc[rows, "verdict"].replace(words)
    if primary and _count_missing(results, primary[1]):
        is_unfinished = compared["primary"] & (compared["seeds"] > 1)
        compared.loc[is_unfinished, ["p_holm", "verdict"]] = [float("nan"), "unfinished"]
    return compared


def _means(values: pd.DataFrame, pair: Contrast) -> list[float]:
    """Average two models over the seeds that both have; if there are none, each over its own seeds."""
    table = values.pivot_table(index="seed", columns="model", values="value")[list(pair)]
    both = table.dropna()
    means: list[float] = (table if both.empty else both).mean().tolist()
    return means


def is_one_run_each(comparisons: pd.DataFrame) -> bool:
    """Tell whether no row has two seeds of both models, so that nothing is tested."""
    return bool((comparisons["verdict"] == "one run").all())


def is_above_chance(values: pd.DataFrame, metric: str) -> bool | None:
    """Tell whether a model's values of a metric, one row per seed, are significantly better than chance.

    None without a chance level or intervals, and for a metric of which neither direction is better.
    """
    known, sign = values.dropna(subset=["chance", "low", "high"]), direction(metric)
    if known.empty or not sign:
        return None
    chance = sign * float(known["chance"].mean())
    return above_chance(sign * known["value"], chance, known["low"], known["high"]) < ALPHA


def verdict_text(row: pd.Series) -> str:
    """Put a row's verdict and the note about chance into words: "worse (neither shown above chance)"."""
    has_note = row["not_above_chance"] and row["verdict"] != "one run"
    return verdict_words(row) + (" (neither shown above chance)" if has_note else "")


def verdict_words(row: pd.Series) -> str:
    """Put a row's verdict into words: "better", "equivalent within 1 point"."""
    points = 100 * float(row["margin"])
    margin = f" within {points:g} point{'s' * (points != 1)}" if row["verdict"] == "equivalent" else ""
    return f"{row['verdict']}{margin}"


def verdict_class(row: pd.Series) -> str:
    """Return the class that colors a verdict, "better" or "worse"; "" for others, or if neither is above chance."""
    is_colored = row["verdict"] in ("better", "worse") and not row["not_above_chance"]
    return str(row["verdict"]) if is_colored else ""


def headline(results: Results, comparisons: pd.DataFrame) -> str:
    """Sum up the results in one sentence: a study's primary endpoint, else the number of comparisons per verdict."""
    if comparisons.empty:
        models = results.models
        if not models:
            return "No results yet."
        why = "no measure is shared" if contrasts_of(results) else f"there is no {BASELINE} to compare with"
        return f"{', '.join(models)}: {why}, so nothing is tested."
    first = comparisons.iloc[0]
    if is_one_run_each(comparisons):
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
            f"{percent(row['high'], sign=True)}, {_seeds_of(results, row)}): {verdict_text(row)}."
        )
    words = comparisons["verdict"].mask(comparisons["not_above_chance"], "not shown above chance")
    verdicts = ", ".join(f"{word} in {count}" for word, count in words.value_counts().items())
    tested = list(dict.fromkeys(comparisons["model"]))
    subject = " and ".join(tested) if len(tested) < 3 else f"{len(tested)} models"
    count = f"{len(comparisons)} comparison{'s' * (len(comparisons) > 1)}"
    return f"{subject} against {baselines_of(comparisons)} in {count} over {seeds_text(comparisons)} seeds: {verdicts}."


def _count_missing(results: Results, pair: Contrast) -> int:
    """Count the runs of two models that the study plans and that have not ended; 0 if no runs are listed."""
    runs, study = results.runs, results.study or {}
    if runs.empty:
        return 0
    ended = set(runs.loc[runs["group"] != "sweep", ["arm", "seed"]].itertuples(index=False, name=None))
    grids = [study["models"], study.get("ablations") or {"arms": {}}]
    planned = {(arm, seed) for grid in grids for arm in grid["arms"] for seed in grid["seeds"] if arm in pair}
    return len(planned - ended)


def _seeds_of(results: Results, row: pd.Series) -> str:
    """Count the seeds of the primary endpoint, and what is missing: "19 seeds, CLIP-s3 diverged"."""
    runs, pair, facts = results.runs, (row["model"], row["against"]), [f"{row['seeds']} seeds"]
    if not runs.empty:
        is_diverged = runs["arm"].isin(pair) & runs["diverged"].notna() & (runs["group"] != "sweep")
        facts += [f"{Path(run).name} diverged" for run in runs.loc[is_diverged, "run"]]
    if missing := _count_missing(results, pair):
        facts.append(f"{missing} run{'s' * (missing > 1)} to come")
    return ", ".join(facts)


def baselines_of(comparisons: pd.DataFrame) -> str:
    """Join the names of the baselines with "and"."""
    return " and ".join(dict.fromkeys(comparisons["against"]))


def not_learned_note(results: Results) -> str:
    """Say in which measures of single sets no model is shown to be above chance; "" if there are none."""
    records = results.records[results.records["task"] != SIX_TASKS]
    values, fields = values_of(records), measures_of(records)
    labels = []
    for measure in headlines(records):
        rows = values[values["measure"] == measure]
        metric = fields.loc[measure, "metric"]
        if all(is_above_chance(group, metric) is False for _, group in rows.groupby("model")):
            labels.append(fields.loc[measure, "label"])
    rest = f", and {len(labels) - 4} more" if len(labels) > 4 else ""
    return f"Not learned, as no model is shown above chance: {'; '.join(labels[:4])}{rest}." if labels else ""


def seeds_text(comparisons: pd.DataFrame) -> str:
    """Write the number of seeds of the comparisons: "3", or "3 to 12"."""
    fewest, most = comparisons["seeds"].min(), comparisons["seeds"].max()
    return str(fewest) if fewest == most else f"{fewest} to {most}"

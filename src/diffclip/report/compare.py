"""Verdict rows in words: the headline of a report, a row's verdict, and what a reader should know of a comparison."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from diffclip.evaluation.statistics import without_copies
from diffclip.report.frame import Results
from diffclip.report.labels import interval, p_text, percent

ONE_RUN = "One training run each: another seed or processor can turn this around."


def is_tested(verdicts: pd.DataFrame) -> bool:
    """Tell whether a row has a test; without one a report shows values with their intervals over items."""
    return len(verdicts) > 0 and bool(verdicts["test"].notna().any())


def verdict_text(row: pd.Series) -> str:
    """Put a row's verdict into words, with the margin of equivalence and a note about chance."""
    text = str(row["verdict"])
    if text == "equivalent" and pd.notna(row["margin"]):
        margin = float(row["margin"]) * (100 if row["share"] else 1)
        text += f" within {margin:.2g}" + (f" point{'s' * (margin != 1)}" if row["share"] else "")
    text += ", pooled" if row["pooled"] else ""
    return text + (" (neither shown above chance)" if row["at_chance"] and pd.notna(row["test"]) else "")


def verdict_class(row: pd.Series) -> str:
    """Return the class that colors a verdict, "better" or "worse"; "" for others, or if neither is above chance."""
    is_colored = row["verdict"] in ("better", "worse") and not row["at_chance"]
    return str(row["verdict"]) if is_colored else ""


def runs_text(row: pd.Series) -> str:
    """Count the runs of a row: "12 pairs" of a paired test, else "20 and 12"."""
    return f"{row['n_a']} pairs" if row["test"] == "paired" else f"{row['n_a']} and {row['n_b']}"


def contrast_of(row: pd.Series) -> str:
    """Name a row's contrast: "DiffCLIP − CLIP"."""
    return f"{row['arm']} − {row['against']}"


def headline(results: Results) -> str:
    """Sum up the results in one sentence: a study's primary endpoint, else the number of comparisons per verdict."""
    verdicts, row = results.verdicts, results.primary
    if row is not None:
        return _primary_sentence(results, row)
    if verdicts.empty:
        models = results.models
        return f"{', '.join(models)}: one model, so nothing is compared." if models else "No results yet."
    if not is_tested(verdicts):
        both = verdicts[verdicts["value"].notna() & verdicts["value_against"].notna()]
        if both.empty:
            reasons = ", ".join(dict.fromkeys(verdicts["verdict"]))
            return f"{', '.join(results.models)}: nothing is compared ({reasons})."
        row = both.iloc[0]
        value, other = (percent(row[name], row["share"]) for name in ("value", "value_against"))
        unit = " %" if row["share"] else ""
        text = f"{row['arm']} {value}{unit} and {row['against']} {other}{unit} on {row['label']}"
        alone, _, whose = str(row["verdict"]).partition("one run ")
        return f"{text}. {ONE_RUN.replace('each', whose) if whose else f'{alone.capitalize()}.'}"
    at_chance = verdicts["at_chance"].astype(bool) & verdicts["test"].notna()
    words = verdicts["verdict"].mask(at_chance, "not shown above chance")
    counts = ", ".join(f"{word} in {count}" for word, count in words.value_counts().items())
    arms = list(dict.fromkeys(verdicts["arm"]))
    subject = " and ".join(arms) if len(arms) < 3 else f"{len(arms)} models"
    count = f"{len(verdicts)} comparison{'s' * (len(verdicts) > 1)}"
    return f"{subject} against {baselines_of(verdicts)} in {count}: {counts}."


def _primary_sentence(results: Results, row: pd.Series) -> str:
    """Say the difference, its interval, runs and p, what the study lacks, and the verdict."""
    text = f"{contrast_of(row)} on {row['label']}, the primary endpoint: "
    if pd.notna(row["difference"]):
        share, p = bool(row["share"]), p_text(row["p"])
        facts = [runs_text(row)]
        if pd.notna(row["low"]):
            facts = [f"95 % interval {interval(row['low'], row['high'], share, sign=True)}", *facts]
        if pd.notna(row["p"]):
            facts.append(f"p {p}" if "<" in p else f"p = {p}")
        runs = results.runs
        if len(runs):
            of_pair = runs["arm"].isin([row["arm"], row["against"]]) & (runs["group"] != "sweep")
            diverged = runs.loc[of_pair & runs["diverged"].notna(), "run"]
            facts += [f"{Path(run).name} diverged" for run in diverged]
            if missing := results.missing:
                facts.append(f"{missing} run{'s' * (missing > 1)} to come")
        text += f"{percent(row['difference'], share, sign=True)}{' points' * share} ({', '.join(facts)}): "
    return f"{text}{verdict_text(row)}."


def baselines_of(verdicts: pd.DataFrame) -> str:
    """Join the names of the baselines with "and"."""
    return " and ".join(dict.fromkeys(verdicts["against"]))


def cautions(results: Results) -> list[str]:
    """Say in one line each what a reader of the comparisons must know.

    These are the fits of linear probes that stopped before they converged, which their protocols tell; the facts in
    which the records of two arms differ apart from the arm; runs that a paired test leaves out; and measures in which
    no model is shown to be above chance.
    """
    verdicts, records = results.verdicts, results.records
    probes = without_copies(records[records["task"] == "linear-probe"])
    texts = probes.drop_duplicates(["model", "seed", "draw", "dataset", "protocol"])["protocol"].str.extract(
        r"(\d+) of (\d+) fits stopped"
    )
    stopped, fits = texts.dropna().astype(int).sum()
    lines = [f"Linear probe: {stopped:,} of {fits:,} fits stopped before they converged."] if stopped else []
    if verdicts.empty:
        return lines
    if results.spec is None:
        alone = [name for name in results.models if name not in {*verdicts["arm"], *verdicts["against"]}]
        words = "as no CLIP of its size and training is known: name a baseline with --against"
        lines += [f"{', '.join(alone)}: not compared, {words}."] if alone else []
    for column, words in (("differs", "their records differ in "), ("note", "")):
        rows = verdicts[verdicts[column].ne("")]
        for (arm, against, text), group in rows.groupby(["arm", "against", column], sort=False):
            where = f"{len(group)} measures" if len(group) > 1 else group["label"].iloc[0]
            lines.append(f"{arm} and {against}: {words}{text} ({where}).")
    measured = verdicts[(verdicts["n_a"] > 0) & (verdicts["n_b"] > 0)]
    at_chance = measured.groupby("label", sort=False)["at_chance"].all()
    labels = [str(label) for label in at_chance.index[at_chance]]
    rest = f", and {len(labels) - 4} more" if len(labels) > 4 else ""
    if labels:
        lines.append(f"Not learned, as no model is shown above chance: {'; '.join(labels[:4])}{rest}.")
    return lines

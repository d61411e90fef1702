"""The paper's printed numbers, its tables with the results at hand beside them, and its claims."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd

from diffclip.report.compare import BASELINE, TREATED, compare, is_paper_model, verdict_class, verdict_text
from diffclip.report.frame import (
    Results,
    interval,
    percent,
    variant_of,
)
from diffclip.report.tables import Table

PANEL_TABLES = {
    "linear probing": "linear-probe",
    "few-shot": "few-shot",
    "image retrieval": "image-retrieval",
    "text retrieval": "text-retrieval",
    "zero-shot": "zero-shot",
}
_PARAMETERS, _TIME = "+0.003 %", "negligible"


@cache
def paper_numbers() -> dict[str, Any]:
    """Read the paper's numbers, with the place of each (`paper_numbers.json`)."""
    found: dict[str, Any] = json.loads(
        files("diffclip.report").joinpath("paper_numbers.json").read_text("utf-8")
    )
    return found


@cache
def paper_gains() -> dict[tuple[str, str, str], dict[str, float]]:
    """Collect the paper's gains in points: (task, model, baseline) → pretraining → gain."""
    gains: dict[tuple[str, str, str], dict[str, float]] = {}
    for panel, name in PANEL_TABLES.items():
        for row in printed_table(name)["rows"]:
            if row.get("gains"):
                gain = row.get("average_gain", row["gains"][0])
                gains.setdefault((panel, row["model"], BASELINE), {})[row["pretraining"]] = gain
    for one in paper_numbers()["statements"]:
        gains.setdefault((one["panel"], one["model"], one["baseline"]), {}).setdefault(
            one["pretraining"], one["gain"]
        )
    pairs = {row["model"]: row["printed"] for row in paper_numbers()["pairs"]["rows"]}
    gains[("mmvp", TREATED, BASELINE)] = {"CC12M": round(pairs[TREATED] - pairs[BASELINE], 1)}
    return gains


def marks() -> dict[tuple[str, str, str], float]:
    """Return the gains for a forest plot as fractions: those for CC12M, by (task or set, model, baseline)."""
    return {key: gain["CC12M"] / 100 for key, gain in paper_gains().items() if "CC12M" in gain}


def gains_in_words() -> dict[tuple[str, str, str], str]:
    """Return the gains as "CC3M +1.0, CC12M +0.3", by (task, model, baseline)."""
    return {
        key: ", ".join(f"{of} {percent(gain / 100, sign=True)}" for of, gain in gains.items())
        for key, gains in paper_gains().items()
    }


def claims_table(results: Results) -> Table | None:
    """Judge the paper's claims about its models: the gains of Sections 4.2 to 4.6, the parameters and the time.

    The scores are corrected together (Holm). None where nothing was measured.
    """
    frame = results.records
    rows: list[list[str]] = []
    found: list[tuple[str, str, str, int]] = []
    models = {variant_of(model): model for model in reversed(results.models) if is_paper_model(model)}
    for panel, model, baseline in paper_gains():
        if panel == "mmvp":
            own = frame[(frame["task"] == "mmvp") & (frame["metric"] == "pair_accuracy")]
        else:
            own = frame[
                (frame["task"] == "six-tasks") & (frame["dataset"] == panel) & (frame["metric"] == "average")
            ]
        if len(own) and {model, baseline} <= models.keys():
            found.append((panel, model, baseline, int(own["measure"].iloc[0])))
    contrasts = list(dict.fromkeys((models[model], models[baseline]) for _, model, baseline, _ in found))
    judged = compare(results, list(dict.fromkeys(one[3] for one in found)), contrasts)
    single = len(judged) and (judged["verdict"] == "one run").all()
    classes = []
    for panel, model, baseline, measure in found:
        fits = (judged["measure"] == measure) & (judged["model"] == models[model])
        fits &= judged["against"] == models[baseline]
        if not fits.any():
            continue
        row = judged[fits].iloc[0]
        printed = gains_in_words()[panel, model, baseline]
        rows.append(
            [
                f"{model} − {baseline}",
                "minimal pairs" if panel == "mmvp" else panel,
                printed,
                percent(row["difference"], sign=True),
                interval(row["low"], row["high"], sign=True),
                "–" if single else verdict_text(row),
            ]
        )
        classes.append("" if single else verdict_class(row))
    for name, printed, value, between in _costs(results, models):
        rows.append([f"{TREATED} − {BASELINE}", name, printed, value, between, "–"])
        classes.append("")
    if not rows:
        return None
    columns = ["claim", "task", "paper", "difference", "95 % interval", "verdict"]
    table = pd.DataFrame(rows, columns=columns)
    note = (
        "Paper: gains printed for ViT-B/16, one training run a model (Tables 1 and 2, Sections 4.3 to 4.6)."
    )
    if single:
        return Table("claims", "The paper's claims", table.drop(columns=["95 % interval", "verdict"]), note)
    return Table(
        "claims", "The paper's claims", table, f"{note} p are corrected over this table (Holm).", classes
    )


def _costs(results: Results, models: dict[str, str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the parameters and the time a step that DiffCLIP needs more than CLIP."""
    cost = results.records[results.records["task"] == "cost"]
    own = cost[cost["metric"] == "parameters"].groupby("model")["value"].first()
    one, other = models.get(TREATED), models.get(BASELINE)
    if one in own.index and other in own.index:
        yield "parameters", _PARAMETERS, f"+{100 * (own[one] / own[other] - 1):.4f} %", ""
    if one in results.timing:
        time = results.timing[one]
        between = f"{100 * (time['low'] - 1):+.0f} to {100 * (time['high'] - 1):+.0f} %"
        yield "time a step", _TIME, f"{100 * (time['ratio'] - 1):+.0f} %", between.replace("-", "−")


def printed_table(name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(table for table in paper_numbers()["tables"] if table["name"] == name)
    return found

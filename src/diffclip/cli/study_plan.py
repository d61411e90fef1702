"""`diffclip study RECIPE --dry-run`: what there is to do, and how long it will take as far as that is known."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import typer

from diffclip.cli.evaluate_table import PIPE_WIDTH
from diffclip.errors import InputError
from diffclip.study.choose import choose, runs_so_far
from diffclip.study.folder import is_finished
from diffclip.study.one import Place
from diffclip.study.pace import Pace
from diffclip.study.plan import Group, Planned
from diffclip.study.recipe import Study


def show_plan(
    study: Study, place: Place, groups: Collection[Group], problems: Sequence[str], as_json: bool
) -> None:
    """Print the runs by group and arm, how many of them are finished, and the time that the others take."""
    every = runs_so_far(study, place.output)
    pace = Pace.of_finished(study, every, place.output)
    wanted = [run for run in every if run.group in groups]
    # models are not finished as long as the sweep may still choose other settings for them
    open_sweep = study.sweep is not None and not _chosen(study, place)
    done = {
        str(run)
        for run in wanted
        if not (open_sweep and run.group != "sweep") and is_finished(study, run, place.output)
    }
    rows = _rows(wanted, done)
    left = [run.group for run in wanted if str(run) not in done]
    seconds = pace.seconds_of(left, place.side_by_side)
    if as_json:
        plan = {"groups": rows, "total": len(wanted), "done": len(done), "workers": place.side_by_side}
        settings = {arm: one.change for arm, one in _chosen(study, place).items()}
        told = {"seconds_left": seconds, "chosen": settings, "problems": list(problems)}
        print(json.dumps(plan | told, ensure_ascii=False, indent=1))
        return
    _show(rows)
    for arm, settings in _chosen(study, place).items():
        typer.echo(f"the sweep chose for {arm}: lr {settings.lr:g}, weight decay {settings.weight_decay:g}")
    typer.echo(f"{len(done)} of {len(wanted)} runs are finished; {_time(seconds, len(left), place)}")


def _chosen(study: Study, place: Place) -> dict[str, Any]:
    try:
        return dict(choose(study, place.output))
    except InputError:
        return {}


def _rows(runs: Sequence[Planned], done: Collection[str]) -> list[dict[str, Any]]:
    """A row an arm of a group, in order."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for run in runs:
        key = (run.group, run.arm)
        row = rows.setdefault(
            key, {"group": run.group, "arm": run.arm, "seeds": [], "suite": run.suite, "runs": 0, "done": 0}
        )
        row["seeds"] += [run.seed] if run.seed not in row["seeds"] else []
        row["runs"] += 1
        row["done"] += str(run) in done
    return list(rows.values())


def _show(rows: Sequence[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("group", "arm", "seeds", "suite"):
        table.add_column(column)
    for column in ("runs", "finished"):
        table.add_column(column, justify="right")
    for row in rows:
        seeds = ", ".join(map(str, row["seeds"]))
        table.add_row(
            row["group"], row["arm"], seeds, row["suite"] or "–", str(row["runs"]), str(row["done"])
        )
    console.print(table)


def _time(seconds: float | None, left: int, place: Place) -> str:
    from diffclip.training.pace import duration

    at_a_time = f"{place.side_by_side} at a time on {place.device}"
    if not left:
        return "nothing is left to do"
    if seconds is None:
        return f"how long the others take is known when the first is finished ({at_a_time})"
    return f"the others take about {duration(seconds)}, {at_a_time}"

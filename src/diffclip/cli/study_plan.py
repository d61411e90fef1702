"""`diffclip study RECIPE --dry-run`: what there is to do, and how long it will take as far as that is known."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import typer

from diffclip.cli.console import table_console
from diffclip.errors import InputError
from diffclip.study.choose import choose, runs_so_far
from diffclip.study.folder import is_finished, read_cost
from diffclip.study.one import Place, why_anew
from diffclip.study.pace import Pace
from diffclip.study.plan import Group, Planned, Settings, repeats, repeats_lines
from diffclip.study.recipe import Study

_NAMED = 3
"""Runs that a line names at most."""


def show_plan(
    study: Study, place: Place, groups: Collection[Group], problems: Sequence[str], as_json: bool
) -> None:
    """Print the runs by group and arm, how many of them are finished, which of these are trained anew and why, which
    arms are left out, and the time that is still to come."""
    every = runs_so_far(study, place.output)
    pace = Pace.of_finished(study, every, place.output)
    wanted = [run for run in every if run.group in groups]
    # models are not finished as long as the sweep may still choose other settings for them
    chosen = _chosen(study, place)
    open_sweep = study.sweep is not None and not chosen
    decided = [run for run in wanted if run.group == "sweep" or not open_sweep]
    done = {str(run) for run in decided if is_finished(study, run, place.output)}
    anew = {
        str(run): why
        for run in decided
        if read_cost(place.output / str(run))
        and (why := why_anew(study, place, run))
        and str(run) not in done
    }
    rows = _rows(wanted, done)
    left = [run.group for run in wanted if str(run) not in done]
    seconds = pace.seconds_of(left, place.side_by_side)
    if as_json:
        plan: dict[str, Any] = {
            "groups": rows,
            "total": len(wanted),
            "done": len(done),
            "workers": place.side_by_side,
            "seconds_left": seconds,
            "chosen": {arm: settings.change for arm, settings in chosen.items()},
            "repeats": repeats(study, chosen),
            "anew": anew,
            "problems": list(problems),
        }
        print(json.dumps(plan, ensure_ascii=False, indent=1))
        return
    _show(rows)
    for arm, settings in chosen.items():
        typer.echo(f"the sweep chose for {arm}: lr {settings.lr:g}, weight decay {settings.weight_decay:g}")
    for line in [*repeats_lines(study, chosen), *_anew_lines(anew)]:
        typer.echo(line)
    typer.echo(f"{len(done)} of {len(wanted)} runs are finished; {_time(seconds, len(left), place)}")


def _chosen(study: Study, place: Place) -> dict[str, Settings]:
    try:
        return choose(study, place.output)
    except InputError:
        return {}


def _anew_lines(anew: Mapping[str, str]) -> list[str]:
    """A line a reason."""
    names: dict[str, list[str]] = {}
    for name, why in anew.items():
        names.setdefault(why, []).append(name)
    return [
        f"trained anew: {len(runs)} finished {'run' if len(runs) == 1 else 'runs'} {why} "
        f"({', '.join(runs[:_NAMED])}{', …' if len(runs) > _NAMED else ''})"
        for why, runs in names.items()
    ]


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
    from rich.table import Table

    console = table_console()
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
    from diffclip.training.logging import duration

    at_a_time = f"{place.side_by_side} at a time on {place.device}"
    if not left:
        return "nothing is left to do"
    if seconds is None:
        return f"how long the others take is known when the first is finished ({at_a_time})"
    return f"the others take about {duration(seconds)}, {at_a_time}"

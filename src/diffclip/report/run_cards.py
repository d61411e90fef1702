"""A card a run: its state, how far and how fast it is, and where and how it was started."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from diffclip.report.runs import Run
from diffclip.report.series import Series
from diffclip.report.state import State, state_of
from diffclip.training.about import without_credentials
from diffclip.training.pace import clock_time, duration

_TAGS = {"going": "higher", "finished": "", "stopped": "lower"}
# what a later start may have that changes numbers or speed, by the words for it
_COMPARED = {
    "data": ("data", "fingerprint"),
    "commit": ("git", "commit"),
    "torch": ("versions", "torch"),
    "machine": ("machine", "name"),
    "GPUs": ("gpus",),
    "processes": ("processes", "world"),
}


def going_cards(runs: Sequence[tuple[Series, Run]], now: float) -> str:
    """The runs that have not finished, as of `now` (unix seconds); empty where there are none."""
    cards = [
        _card(series, run, state, now)
        for series, run in runs
        if (state := state_of(run, now)).kind != "finished"
    ]
    return f'<div class="runs">{"".join(cards)}</div>' if cards else ""


def finished_cards(runs: Sequence[tuple[Series, Run]], now: float) -> str:
    """The finished runs that tell how they were started; empty where there are none."""
    cards = [
        _card(series, run, state, now)
        for series, run in runs
        if run.starts and (state := state_of(run, now)).kind == "finished"
    ]
    return f'<div class="runs">{"".join(cards)}</div>' if cards else ""


def _card(series: Series, run: Run, state: State, now: float) -> str:
    seed = "" if run.seed is None else f", seed {run.seed}"
    bar = ""
    if state.share is not None and state.kind != "finished":
        share = f"{100 * state.share:.1f}%"
        bar = (
            f'<div class="bar {state.kind}" role="img" aria-label="{share} done">'
            f'<div style="width:{share}"></div></div>'
        )
    facts = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{value}</dd>"
        for name, value in (*_progress(state, now), *_circumstances(run))
    )
    return (
        f'<article class="run"><h3>{html.escape(series.label + seed)} '
        f'<span class="tag {_TAGS[state.kind]}">{state.kind}</span></h3>'
        f'<p class="note">{html.escape(run.name)}</p>{bar}<dl>{facts}</dl></article>'
    )


def _progress(state: State, now: float) -> Iterator[tuple[str, str]]:
    """Names and HTML of what training has told so far."""
    ago = max(now - state.heard, 0.0)
    if state.kind == "finished":
        yield "ended", _moment(state.heard)
    else:
        how = f": {html.escape(state.how)}" if state.how else ""
        yield "last heard", f"{duration(ago)} before this page, {_moment(state.heard)}{how}"
    step = f"{state.step:,}"
    if state.steps is not None and state.share is not None:
        # rounded down: 100 % is the end
        step += f" of {state.steps:,} ({int(1000 * state.share) / 10:g} %)"
    yield "step", step
    if state.epoch is not None:
        yield "epoch", f"{state.epoch}" + ("" if state.epochs is None else f" of {state.epochs}")
    if state.samples is not None:
        yield "samples", f"{state.samples:,}"
    if state.rate is not None:
        wait = (
            "" if state.data_wait is None else f", {100 * state.data_wait:.0f} % of the time waiting for data"
        )
        yield "rate", f"{state.rate:,.0f} samples a second{wait}"
    if state.left is not None:
        ends = state.heard + state.left
        yield "time left", f"{duration(max(ends - now, 0.0))}, ends {clock_time(ends, now)}"


def _circumstances(run: Run) -> Iterator[tuple[str, str]]:
    """Names and HTML of what the starts of the run tell; of the last one where only one is shown."""
    if not run.starts:
        return
    start = run.starts[-1]
    for name, words in (
        ("machine", _machine(start)),
        ("processes", _processes(start)),
        ("software", _software(start)),
        ("data", _data(start)),
    ):
        if words:
            yield name, html.escape(without_credentials(words))
    environment = _mapping(start, "environment")
    if environment:
        settings = " ".join(f"{name}={value}" for name, value in environment.items())
        yield "environment", f"<code>{html.escape(settings)}</code>"
    if start.get("command"):
        yield "command", f"<code>{html.escape(without_credentials(str(start['command'])))}</code>"
    if len(run.starts) > 1:
        starts = "".join(f"<li>{html.escape(line)}</li>" for line in _starts(run.starts))
        yield f"{len(run.starts)} starts", f"<ol>{starts}</ol>"


def _machine(start: Mapping[str, Any]) -> str:
    machine = _mapping(start, "machine")
    hosts = _mapping(start, "processes").get("hosts")
    names = list(dict.fromkeys(map(str, hosts))) if isinstance(hosts, list) else []
    parts = [", ".join(names) if names else str(machine.get("name") or "")]
    gpus = [gpu for gpu in start.get("gpus") or [] if isinstance(gpu, Mapping)]
    kinds: dict[str, int] = {}
    for gpu in gpus:
        driver = f", driver {gpu['driver']}" if gpu.get("driver") else ""
        kind = f"{gpu.get('name', 'GPU')}{_gigabytes(gpu.get('memory'))}{driver}"
        kinds[kind] = kinds.get(kind, 0) + 1
    parts += [f"{count} × {kind}" for kind, count in kinds.items()]
    if machine.get("cpu"):
        cores = f"{machine['cores']} cores of " if machine.get("cores") else ""
        parts.append(f"{cores}{machine['cpu']}{_gigabytes(machine.get('memory'))}")
    job = _mapping(start, "job").get("SLURM_JOB_ID")
    parts += [f"SLURM job {job}"] if job else []
    return "; ".join(filter(None, parts))


def _processes(start: Mapping[str, Any]) -> str:
    facts = _mapping(start, "processes")
    parts = []
    if facts.get("world"):
        nodes = facts.get("nodes") or 1
        parts.append(f"{facts['world']} on {nodes} node{'s' * (nodes != 1)}")
    parts += [str(facts[name]) for name in ("strategy", "precision") if facts.get(name)]
    return ", ".join(parts)


def _software(start: Mapping[str, Any]) -> str:
    versions = _mapping(start, "versions")
    git = _mapping(start, "git")
    parts = [f"{name} {versions[name]}" for name in ("diffclip", "torch", "cuda") if versions.get(name)]
    if parts and git.get("commit"):
        changed = ", with changes" if git.get("dirty") else ""
        parts[0] += f" (commit {str(git['commit'])[:9]} of {git.get('branch')}{changed})"
    return ", ".join(parts)


def _data(start: Mapping[str, Any]) -> str:
    data = _mapping(start, "data")
    parts = []
    if isinstance(data.get("samples"), int):
        parts.append(f"{data['samples']:,} samples")
    sources = [source for source in data.get("sources") or [] if isinstance(source, Mapping)]
    shards = [source["shards"] for source in sources if isinstance(source.get("shards"), int)]
    if shards:
        several = f" of {len(sources)} sources" if len(sources) > 1 else ""
        parts.append(f"{sum(shards):,} shard{'s' * (sum(shards) != 1)}{several}")
    parts += [f"fingerprint {data['fingerprint']}"] if data.get("fingerprint") else []
    return ", ".join(parts)


def _starts(starts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line a start: when, from which step, what differs from the one before, and how it ended."""
    before: Mapping[str, Any] | None = None
    for start in starts:
        line = f"{_moment(start.get('time'))} after step {_count(start.get('step'))}"
        if before is not None:
            other = [word for word, path in _COMPARED.items() if _at(before, path) != _at(start, path)]
            line += f", with other {', '.join(other)}" if other else ""
        ended = _mapping(start, "ended")
        if ended:
            how = str(ended.get("how", "?"))
            after = f"after step {_count(ended.get('step'))}"
            line += f"; finished {after}" if how == "finished" else f"; ended {after}: {how}"
        yield line
        before = start


def _at(facts: Mapping[str, Any], path: Sequence[str]) -> Any:
    found: Any = facts
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _mapping(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = facts.get(name)
    return found if isinstance(found, Mapping) else {}


def _count(number: object) -> str:
    return f"{number:,}" if isinstance(number, int) else "?"


def _gigabytes(size: object) -> str:
    return f", {size / 2**30:.0f} GB" if isinstance(size, int) and size else ""


def _moment(time: object) -> str:
    if not isinstance(time, int | float):
        return "at an unknown time"
    then = datetime.fromtimestamp(time)
    return f"{then.day} {then:%b %Y %H:%M}"

"""One published list of captioned pictures, from what it will take to what has come."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from diffclip.data.caption_sets import CaptionSet
    from diffclip.data.run_img2dataset import Outcome

_REASONS = 6
# the estimate is rough: below this share of it the disk is refused
_CLEARLY_TOO_LITTLE = 0.7


@dataclass(frozen=True)
class Settings:
    """What the user chose about lists of pictures, as `find_tool` and `prepare_list` take it."""

    tool: list[str]
    own: str | None
    columns: tuple[str, str] | None
    processes: int
    threads: int


def download_captions(name: str, root: Path, settings: Settings) -> None:
    """Fetch one set into ROOT/NAME/train, going on where an earlier call stopped.

    Raises:
        InputError: the disk has clearly too little space, or the list is of no use.
        DiffCLIPError: the list cannot be fetched, the tool failed, or not one picture came.
    """
    from diffclip.cli.progress import showing_progress
    from diffclip.data.caption_list import prepare_list
    from diffclip.data.caption_sets import CAPTION_SETS
    from diffclip.data.run_img2dataset import command_of, outcome_of, run_tool
    from diffclip.errors import DiffCLIPError

    entry, place = CAPTION_SETS[name], root.expanduser() / name
    shards, log = place / "train", place / "img2dataset.log"
    typer.echo(f"{name}: {entry.title}, from {settings.own or entry.home}")
    done = outcome_of(shards)
    if settings.own is None:
        _say_needs(entry, entry.pairs, settings.processes, place, done)
    with showing_progress(name, {}) as advance:
        source = prepare_list(entry, place, settings.own, settings.columns, advance)
    if source.left_out:
        typer.echo(f"  {source.left_out:,} lines of the list left out: no address or no caption")
    pairs = source.pairs or entry.pairs
    if settings.own is not None:
        _say_needs(entry, pairs, settings.processes, place, done)
    if source.pairs is None or done.pairs < source.pairs:
        command = command_of(settings.tool, source, shards, settings.processes, settings.threads)
        typer.echo(f"  {shlex.join(command)}")
        typer.echo(f"  its words go to {log}; stopped, the same command goes on")
        with showing_progress(name, {"pairs": pairs - done.pairs}) as advance:
            run_tool(command, shards, log, advance)
    outcome = outcome_of(shards)
    if not outcome.pictures:
        why = outcome.reasons.most_common(1)
        said = f" ({why[0][0]})" if why else ""
        raise DiffCLIPError(
            f"not one picture of {name} came{said}: check the network and start again; its log is {log}"
        )
    _show(name, shards, outcome)
    if source.pairs is not None and outcome.pairs < source.pairs:
        missing = source.pairs - outcome.pairs
        raise DiffCLIPError(
            f"{missing:,} pairs of {name} are not done, as {log} tells: start again to go on with them"
        )
    typer.echo(f"Next: diffclip data check {shlex.quote(str(shards))}")


def _say_needs(entry: CaptionSet, pairs: int, processes: int, place: Path, done: Outcome) -> None:
    """Say what is to come, and refuse a disk that cannot hold it."""
    from diffclip.data.caption_sets import needs, told
    from diffclip.data.published_sets import in_bytes
    from diffclip.errors import InputError

    folder = place.absolute()
    while not folder.is_dir():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    for line in told(entry, pairs, processes, place, free):
        typer.echo(f"  {line}")
    if done.pairs:
        typer.echo(f"  {done.pairs:,} pairs are done already, {done.pictures:,} pictures of them are there")
    left = needs(entry, max(0, pairs - done.pairs), processes).size
    if free < _CLEARLY_TOO_LITTLE * left:
        raise InputError(
            f"{place} needs about {in_bytes(left)} more, but {in_bytes(free)} are free: "
            "make room or give another --root"
        )


def _show(name: str, shards: Path, outcome: Outcome) -> None:
    """The table of what came and what did not."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from diffclip.data.published_sets import in_bytes

    table = Table(
        title=Text(
            f"{name}: {outcome.shards:,} shard{'s' * (outcome.shards != 1)}, {in_bytes(outcome.size)} in {shards}"
        ),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        pad_edge=False,
    )
    table.add_column("outcome", overflow="fold")
    table.add_column("pairs", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    named = outcome.reasons.most_common(_REASONS)
    rows = [
        ("pictures that came", outcome.pictures),
        ("not fetched", outcome.not_fetched),
        ("not readable", outcome.not_read),
        *((f"  {reason}", number) for reason, number in named),
    ]
    rest = sum(outcome.reasons.values()) - sum(number for _, number in named)
    rows += [("  other reasons", rest)] if rest else []
    for what, number in rows:
        table.add_row(Text(what), f"{number:,}", f"{100 * number / outcome.pairs:.1f} %")
    console = Console()
    if not console.is_terminal:
        console.width = 140
    console.print(table)

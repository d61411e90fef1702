"""`diffclip data download`: fetch published sets, or print the commands that fetch them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from diffclip.data.download import CAPTION_SETS, command_of, fetch, prepare_list, require_tool, run_tool
from diffclip.data.published_sets import PUBLISHED, by_hand, is_there, place_of
from diffclip.errors import DiffCLIPError, InputError, StoppedError, unknown
from diffclip.files import cores

_BYTES = 25_000  # an image with the shorter edge at 224, about


def download(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Sets to evaluate on, as clip_benchmark calls them (cifar10, food101 …), or to train on: "
            "cc3m, cc12m, mscoco, laion400m.",
            metavar="NAME",
        ),
    ],
    root: Annotated[Path, typer.Option(help="Folder of the sets; each set is ROOT/NAME.")],
    url_list: Annotated[
        str | None,
        typer.Option(
            "--list",
            help="To train on: take this list instead of the published one (an address, a .tsv, a .parquet file "
            "or folder).",
        ),
    ] = None,
    processes: Annotated[int, typer.Option(help="Processes of img2dataset; 0: one per core.", min=0)] = 0,
    threads: Annotated[
        int, typer.Option(help="Download threads per process; many threads load the name server.", min=1)
    ] = 64,
) -> None:
    """Fetch published sets from their publishers into ROOT/NAME.

    Example: diffclip data download cifar10 dtd --root sets

    Example: diffclip data download cc3m --root sets --processes 16

    A set that its publisher gives to signed-in users only is not fetched: the commands to type are printed (exit code
    2). Sets to train on are lists of addresses: img2dataset fetches their images into the shards ROOT/NAME/train, the
    shorter edge at 224. After a stop (exit code 130 or 75) the same command continues.
    """
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in PUBLISHED and name not in CAPTION_SETS:
            raise unknown("published set", name, [*PUBLISHED, *CAPTION_SETS])
    if url_list and sum(name in CAPTION_SETS for name in names) != 1:
        raise InputError(f"--list is for one set to train on, such as {next(iter(CAPTION_SETS))}")
    failures: list[DiffCLIPError] = []
    for name in names:
        try:
            if name in PUBLISHED:
                _fetch_set(name, root)
            else:
                _fetch_captions(name, root, url_list, processes, threads)
        except StoppedError:
            raise
        except DiffCLIPError as error:
            failures.append(error)
    for failure in failures[:-1]:
        typer.echo(f"diffclip: {failure}", err=True)
    if failures:
        raise failures[-1]


def _fetch_set(name: str, root: Path) -> None:
    """Fetch one set to evaluate on, unless it is there, or print the commands that do."""
    entry, place = PUBLISHED[name], place_of(name, root)
    if is_there(name, "test", place):
        typer.echo(f"{name} is in {place} already.")
        return
    typer.echo(f"{name}: {entry.title}, {entry.size}, from {entry.home}")
    if how := by_hand(name, root):
        typer.echo(f"By hand: {how}")
        if entry.reader == "captions":
            folder = shlex.quote(str(place))
            typer.echo(f"Then, to train on it: diffclip data make-shards {folder} {folder}")
        raise InputError(f"{name} must be fetched by hand, with the commands above")
    typer.echo(f"{name} is in {fetch(name, root)}.")


def _fetch_captions(name: str, root: Path, own: str | None, processes: int, threads: int) -> None:
    """Fetch one set to train on into ROOT/NAME/train, going on where an earlier call stopped."""
    entry, place = CAPTION_SETS[name], root.expanduser() / name
    if not (own or entry.address):
        raise InputError(f"{name}: {entry.wants}; then give it with --list FOLDER")
    shards = place / "train"
    require_tool()
    size = f"{entry.pairs / 1e6:,.1f} million pairs, at most {entry.pairs * _BYTES / 1e9:,.0f} GB"
    typer.echo(f"{name}: {entry.title}{'' if own else f', {size}'}, from {own or entry.home}")
    typer.echo("img2dataset fetches each image from its own address, which takes hours to days:")
    command = command_of(*prepare_list(entry, place, own), shards, processes or cores(), threads)
    typer.echo(f"  {shlex.join(command)}")
    outcome = run_tool(command, shards)
    done, came = outcome.total(), outcome.pop("success", 0)
    for reason, count in [("images that came", came), *outcome.most_common(6)]:
        typer.echo(f"  {reason}: {count:,} ({100 * count / max(done, 1):.1f} %)")
    if not came:
        raise DiffCLIPError(
            f"not one image of {name} came: check the network, remove {shards} and start again"
        )
    typer.echo(f"Next: diffclip data check {shlex.quote(str(shards))}")

"""`diffclip data download`: fetch published sets, or say how they are fetched."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from diffclip.errors import DiffCLIPError

_REASONS = 6


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
    from diffclip.data.download import CAPTION_SETS, find_tool
    from diffclip.data.published_files import check_fetch
    from diffclip.data.published_sets import PUBLISHED, by_hand, is_there, place_of
    from diffclip.errors import DiffCLIPError, InputError, StoppedError, unknown
    from diffclip.files import cores

    names = list(dict.fromkeys(names))
    for name in names:
        if name not in PUBLISHED and name not in CAPTION_SETS:
            raise unknown("published set", name, [*PUBLISHED, *CAPTION_SETS])
    lists = [name for name in names if name in CAPTION_SETS]
    _check(lists, url_list)
    tool = find_tool() if lists else []
    there = {name for name in names if name in PUBLISHED and is_there(name, "test", place_of(name, root))}
    manual = [name for name in names if name in PUBLISHED and name not in there and by_hand(name, root)]
    check_fetch([name for name in names if name not in {*there, *manual, *lists}], root)
    failures: list[DiffCLIPError] = []
    for name in names:
        try:
            if name in lists:
                _captions(name, root, tool, url_list, processes or cores(), threads)
            else:
                _published(name, root, name in there)
        except StoppedError:
            raise
        except DiffCLIPError as error:
            failures.append(error)
    for failure in failures[:-1]:
        typer.echo(f"diffclip: {failure}", err=True)
    if failures:
        raise failures[-1]
    if manual:
        raise InputError(f"{', '.join(manual)} must be fetched by hand, with the commands above")


def _check(lists: list[str], url_list: str | None) -> None:
    """Raise `InputError` where the option does not fit the sets to train on."""
    from diffclip.data.download import CAPTION_SETS
    from diffclip.errors import InputError

    if url_list and len(lists) != 1:
        raise InputError(f"--list is for one set to train on, such as {next(iter(CAPTION_SETS))}")
    for name in lists:
        if not CAPTION_SETS[name].address and url_list is None:
            raise InputError(f"{name}: {CAPTION_SETS[name].wants}; then give it with --list FOLDER")


def _published(name: str, root: Path, there: bool) -> None:
    """Fetch one set to evaluate on, or say that it is there or how it is fetched."""
    from diffclip.data.published_files import fetch
    from diffclip.data.published_sets import PUBLISHED, by_hand, place_of

    entry = PUBLISHED[name]
    what = f"{name}: {entry.title}, {entry.size}, from {entry.home}"
    if there:
        typer.echo(f"{name} is in {place_of(name, root)} already.")
    elif by_hand(name, root):
        typer.echo(f"{what}. By hand: {by_hand(name, root)}")
        if name in ("flickr8k", "flickr30k"):
            place = shlex.quote(str(place_of(name, root)))
            typer.echo(f"Then, to train on it: diffclip data make-shards {place} {place}")
    else:
        typer.echo(what)
        typer.echo(f"{name} is in {fetch(name, root)}.")


def _captions(
    name: str,
    root: Path,
    tool: list[str],
    own: str | None,
    processes: int,
    threads: int,
) -> None:
    """Fetch one set to train on into ROOT/NAME/train, going on where an earlier call stopped."""
    from diffclip.data.download import CAPTION_SETS, command_of, outcome_of, prepare_list, run_tool
    from diffclip.errors import DiffCLIPError

    entry, place = CAPTION_SETS[name], root.expanduser() / name
    shards = place / "train"
    pairs = "" if own else f", {entry.pairs:,} pairs"
    typer.echo(f"{name}: {entry.title}{pairs}, from {own or entry.home}")
    command = command_of(tool, *prepare_list(entry, place, own), shards, processes, threads)
    typer.echo(f"  {shlex.join(command)}")
    run_tool(command, shards)
    outcome = outcome_of(shards)
    done, came = outcome.total(), outcome.pop("success", 0)
    for reason, count in [("images that came", came), *outcome.most_common(_REASONS)]:
        typer.echo(f"  {reason}: {count:,} ({100 * count / max(done, 1):.1f} %)")
    if not came:
        raise DiffCLIPError(
            f"not one image of {name} came: check the network, remove {shards} and start again"
        )
    typer.echo(f"Next: diffclip data check {shlex.quote(str(shards))}")

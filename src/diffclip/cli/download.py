"""`diffclip data download`: fetch published sets, or say how they are fetched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from diffclip.cli.download_captions import Settings
    from diffclip.errors import DiffCLIPError


def download(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Sets to evaluate on, as clip_benchmark calls them (cifar10, food101 …), or to train on: "
            "cc3m, cc12m, mscoco, laion400m, coyo700m.",
            metavar="NAME",
        ),
    ],
    root: Annotated[Path, typer.Option(help="Each set goes into the folder ROOT/NAME.")],
    url_list: Annotated[
        str | None,
        typer.Option(
            "--list",
            help="To train on: take this list instead of the published one (an address, a .tsv, a .parquet file "
            "or folder).",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Names of the columns of addresses and captions in --list.", metavar="URL,CAPTION"),
    ] = None,
    processes: Annotated[int, typer.Option(help="Processes of img2dataset; 0 takes one a core.", min=0)] = 0,
    threads: Annotated[
        int, typer.Option(help="Threads of each that fetch; more load the name server.", min=1)
    ] = 64,
    img2dataset: Annotated[
        Path | None, typer.Option(help="The program img2dataset, if it is not on PATH.")
    ] = None,
) -> None:
    """Fetch published sets from their publishers into ROOT/NAME.

    Example: diffclip data download cifar10 dtd --root sets

    Example: diffclip data download cc3m --root sets --processes 16

    A set that its publisher gives to signed-in users only is not fetched: the commands to type are printed (exit code
    2). Sets to train on are lists of addresses: img2dataset fetches their pictures into the shards ROOT/NAME/train,
    the shorter edge at 224. Stopped (exit code 130 or 75), the same command goes on.
    """
    from diffclip.data.caption_sets import CAPTION_SETS
    from diffclip.data.fetch import check_fetch
    from diffclip.data.published_sets import PUBLISHED, by_hand, is_there, place_of
    from diffclip.errors import InputError, unknown

    names = list(dict.fromkeys(names))
    for name in names:
        if name not in PUBLISHED and name not in CAPTION_SETS:
            raise unknown("published set", name, [*PUBLISHED, *CAPTION_SETS])
    lists = [name for name in names if name in CAPTION_SETS]
    there = {name: name in PUBLISHED and is_there(name, "test", place_of(name, root)) for name in names}
    manual = [name for name in names if name in PUBLISHED and not there[name] and by_hand(name, root)]
    settings = _settings(lists, url_list, columns, processes, threads, img2dataset)
    check_fetch([name for name in names if not there[name] and name not in [*manual, *lists]], root)
    failures: list[DiffCLIPError] = []
    for name in names:
        _get(name, root, there[name], settings, failures)
    for failure in failures[:-1]:
        typer.echo(f"diffclip: {failure}", err=True)
    if failures:
        raise failures[-1]
    if manual:
        raise InputError(f"{', '.join(manual)} must be fetched by hand, with the commands above")


def _settings(
    lists: list[str],
    url_list: str | None,
    columns: str | None,
    processes: int,
    threads: int,
    img2dataset: Path | None,
) -> Settings | None:
    """What the sets to train on are fetched with; None where there is none of these."""
    from diffclip.cli.download_captions import Settings
    from diffclip.data.caption_sets import CAPTION_SETS
    from diffclip.data.run_img2dataset import find_tool
    from diffclip.errors import InputError

    if (url_list or columns) and len(lists) != 1:
        raise InputError(
            f"--list and --columns are for one set to train on, such as {next(iter(CAPTION_SETS))}"
        )
    if columns and not url_list:
        raise InputError("--columns names the columns of a list of your own: give --list with it")
    named = None if columns is None else [name.strip() for name in columns.split(",") if name.strip()]
    if named is not None and len(named) != 2:
        raise InputError(f"--columns {columns!r} is not two names: write URL,CAPTION")
    for name in lists:
        if not CAPTION_SETS[name].addresses and url_list is None:
            raise InputError(f"{name}: {CAPTION_SETS[name].wants}; then give it with --list FOLDER")
    if not lists:
        return None
    pair = (named[0], named[1]) if named else None
    return Settings(find_tool(img2dataset), url_list, pair, processes or os.cpu_count() or 1, threads)


def _get(
    name: str, root: Path, there: bool, settings: Settings | None, failures: list[DiffCLIPError]
) -> None:
    """Fetch one set, or say that it is there or how it is fetched; its failure is appended to `failures`."""
    from diffclip.cli.download_captions import download_captions
    from diffclip.data.caption_sets import CAPTION_SETS
    from diffclip.data.fetch import fetch
    from diffclip.data.published_sets import by_hand, place_of, published, size_of
    from diffclip.errors import DiffCLIPError, StoppedError

    try:
        if name in CAPTION_SETS and settings is not None:
            download_captions(name, root, settings)
            return
        entry = published(name)
        what = f"{name}: {entry.title}, {size_of(entry)}, from {entry.home}"
        if there:
            typer.echo(f"{name} is in {place_of(name, root)} already.")
        elif by_hand(name, root):
            typer.echo(f"{what}. By hand: {by_hand(name, root)}")
        else:
            typer.echo(what)
            typer.echo(f"{name} is in {fetch(name, root)}.")
    except StoppedError:
        raise
    except DiffCLIPError as error:
        failures.append(error)

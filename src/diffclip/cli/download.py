"""`diffclip data download`: fetch published sets, or say how they are fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def download(
    names: Annotated[
        list[str],
        typer.Argument(help="Sets, as clip_benchmark calls them: cifar10, food101 …", metavar="NAME"),
    ],
    root: Annotated[Path, typer.Option(help="Each set goes into the folder ROOT/NAME.")],
) -> None:
    """Fetch published sets from their publishers into ROOT/NAME.

    Example: diffclip data download cifar10 dtd --root sets

    For a set that its publisher gives to signed-in users only, the commands to type are printed (exit code 2).
    """
    from diffclip.data.fetch import check_fetch, fetch
    from diffclip.data.published_sets import by_hand, is_there, place_of, published, size_of
    from diffclip.errors import DiffCLIPError, InputError

    names = list(dict.fromkeys(names))
    there = {name: is_there(name, "test", place_of(name, root)) for name in names}
    needed = [name for name in names if not there[name]]
    manual = [name for name in needed if by_hand(name, root)]
    wanted = [name for name in needed if name not in manual]
    check_fetch(wanted, root)
    failures: list[DiffCLIPError] = []
    for name in names:
        entry = published(name)
        what = f"{name}: {entry.title}, {size_of(entry)}, from {entry.home}"
        if there[name]:
            typer.echo(f"{name} is in {place_of(name, root)} already.")
        elif name in manual:
            typer.echo(f"{what}. By hand: {by_hand(name, root)}")
        else:
            typer.echo(what)
            try:
                typer.echo(f"{name} is in {fetch(name, root)}.")
            except DiffCLIPError as error:
                failures.append(error)
    for failure in failures[:-1]:
        typer.echo(f"diffclip: {failure}", err=True)
    if failures:
        raise failures[-1]
    if manual:
        raise InputError(f"{', '.join(manual)} must be fetched by hand, with the commands above")

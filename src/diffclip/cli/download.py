"""`diffclip data download`: fetch published sets, or print the commands that fetch them."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from diffclip.data.download import CAPTION_SETS, fetch, img2dataset_command, prepare_list
from diffclip.data.published_sets import PUBLISHED, by_hand, is_there, place_of
from diffclip.errors import DiffCLIPError, InputError, unknown

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
) -> None:
    """Fetch published sets from their publishers into ROOT/NAME.

    Example: diffclip data download cifar10 dtd --root sets

    A set that its publisher gives to signed-in users only is not fetched: the commands to type are printed (exit code
    2). Sets to train on are lists of addresses: img2dataset fetches their images into the shards ROOT/NAME/train, the
    shorter edge at 224. After a stop the same command continues.
    """
    for name in names:
        if name not in PUBLISHED and name not in CAPTION_SETS:
            raise unknown("published set", name, [*PUBLISHED, *CAPTION_SETS])
    left = [name for name in dict.fromkeys(names) if not _fetch(name, root.expanduser())]
    if left:
        raise InputError(f"{', '.join(left)} must be fetched by hand, with the commands above")


def _fetch(name: str, root: Path) -> bool:
    """Fetch one set; return False if that must be done by hand, by the commands that are printed."""
    if name in CAPTION_SETS:
        _fetch_captions(name, root / name)
        return True
    entry, place = PUBLISHED[name], place_of(name, root)
    if is_there(name, "test", place):
        typer.echo(f"{name} is in {place} already.")
        return True
    typer.echo(f"{name}: {entry.title}, {entry.size}, from {entry.home}")
    if how := by_hand(name, root):
        typer.echo(f"By hand:\n  {how}")
        if entry.reader == "captions":
            small = Path(f"{place.parent}-80" if place.parent.name else "sets-80") / name
            folders = shlex.join([str(place), str(small)])
            typer.echo(f"Then, to train on it at 80 pixels: diffclip data make-shards {folders} --edge 80")
        return False
    typer.echo(f"{name} is in {fetch(name, root)}.")
    return True


def _fetch_captions(name: str, place: Path) -> None:
    """Fetch one set to train on into the shards PLACE/train, going on where an earlier call stopped."""
    entry, shards = CAPTION_SETS[name], place / "train"
    size = f"{entry.pairs / 1e6:,.1f} million pairs, at most {entry.pairs * _BYTES / 1e9:,.0f} GB"
    typer.echo(f"{name}: {entry.title}, {size}, from {entry.home}")
    if not shutil.which("img2dataset"):
        raise InputError(
            "img2dataset, which fetches the images, is not installed: run pipx install img2dataset"
        )
    command = img2dataset_command(name, prepare_list(name, place), shards)
    typer.echo("img2dataset fetches each image from its own address, which takes hours to days:")
    typer.echo(f"  {shlex.join(command)}")
    shards.mkdir(exist_ok=True)
    if code := subprocess.run(command, check=False).returncode:
        raise DiffCLIPError(f"img2dataset failed with exit code {code}: see its messages above")
    typer.echo(f"Next: diffclip data check {shlex.quote(str(shards))}")

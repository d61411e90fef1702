"""`diffclip search`: a folder of pictures searched by text, or by a picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffclip.cli.skipped import say_skipped
from diffclip.errors import InputError, require_group
from diffclip.files import printable
from diffclip.model_source import MODEL_HELP, load_for_use, pick_device

if TYPE_CHECKING:
    from PIL import Image

    from diffclip.data.samples import Fault
    from diffclip.search import Hit, PictureIndex

_SHEETS = (".png", ".svg")


def search(
    folder: Annotated[Path, typer.Argument(help="Pictures, at any depth.", metavar="FOLDER")],
    model: Annotated[str, typer.Option(help=MODEL_HELP)],
    text: Annotated[str | None, typer.Argument(help="What the pictures are to show.", metavar="TEXT")] = None,
    image: Annotated[
        Path | None, typer.Option(help="Find pictures like this one, instead of a text.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Show this many.")] = 12,
    sheet: Annotated[
        Path | None, typer.Option(help="Write a contact sheet to this file, .png or .svg.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object a picture, one a line.")
    ] = False,
    index: Annotated[
        Path | None,
        typer.Option(help="The folder where the index lies; default: in the user's cache folder."),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update/--no-update", help="Look for new, changed and deleted files first.")
    ] = True,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures at once.")] = 64,
    workers: Annotated[int, typer.Option(min=0, help="Processes that read pictures ahead.")] = 0,
    model_name: Annotated[
        str | None, typer.Option(help="What a published file holds, if it cannot tell.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto prefers CUDA.")] = "auto",
) -> None:
    """Find pictures in a folder by what they show.

    Example: diffclip search photos/ "two dogs on a beach" --model runs/demo/DiffCLIP --sheet dogs.png

    Example: diffclip search photos/ --image dog.jpg --model runs/demo/DiffCLIP --json

    The first search embeds every picture and keeps that in an index; later ones only those that are new or have
    changed. One that is stopped goes on where it was; while it runs, others search what it has done. Each model has its
    own index of a folder. Broken pictures are skipped, counted and named.

    Memory beside the model and the program: 2 bytes a number of a vector and 8 a picture, and 50 MB. For a million
    pictures and a model 512 wide that is 1.1 GB.
    """
    if (text is None) == (image is None):
        raise InputError("give either a text to search for or --image, and not both")
    require_group("search", "faiss")
    from diffclip.data.images import read_image
    from diffclip.files import check_writable
    from diffclip.search import PictureIndex
    from diffclip.search.index import check_text
    from diffclip.search.scan import real_folder

    real_folder(folder)
    if text is not None:
        check_text(text)
    if sheet is not None:
        _check_sheet(sheet)
        check_writable(sheet)
    picture = None if image is None else read_image(image)
    place = pick_device(device)
    loaded = load_for_use(model, model_name)
    loaded.model.to(place)
    with PictureIndex.open(folder, loaded, index) as pictures:
        faults = _update(pictures, batch_size, workers) if update else pictures.faults()
        if not len(pictures):
            raise _nothing(pictures, faults, update)
        hits = pictures.search_image(picture, top) if picture else pictures.search_text(text or "", top)
        # first, as whoever reads what is printed may leave
        if sheet is not None:
            searched = f"{len(pictures):,} pictures in {printable(str(folder))}, by {loaded.label}"
            _write_sheet(sheet, picture or text or "", hits, searched)
        if as_json:
            _print_json(hits)
        else:
            _show(hits, [printable(str(folder / hit.path.relative_to(pictures.folder))) for hit in hits])
        what = f"{len(faults)} of {len(pictures) + len(faults)} files"
    say_skipped(what, [_fault(fault) for fault in faults])


def _check_sheet(sheet: Path) -> None:
    if sheet.suffix.lower() not in _SHEETS:
        raise InputError(f"{sheet} has another ending than .png or .svg: give one of them")
    require_group("search", "matplotlib")


def _update(pictures: PictureIndex, batch_size: int, workers: int) -> list[Fault]:
    """Bring the index up to date, say on stderr what came of it, and return what was skipped.

    While another process does that, what the index holds so far is left as it is.
    """
    from diffclip.cli.progress import showing_progress
    from diffclip.search import BusyError

    try:
        with showing_progress("index", {}) as progress:
            done = pictures.update(progress, batch_size, workers)
    except BusyError as busy:
        if not len(pictures):
            raise
        print(
            f"diffclip: {busy.holder} updates the index: searching the {len(pictures):,} pictures in it so far",
            file=sys.stderr,
        )
        return pictures.faults()
    if done.added or done.changed or done.removed:
        print(
            f"diffclip: index of {done.total:,} pictures: {done.added:,} added, {done.changed:,} changed, "
            f"{done.removed:,} gone",
            file=sys.stderr,
        )
    return done.faults


def _nothing(pictures: PictureIndex, faults: list[Fault], updated: bool) -> InputError:
    if not updated and not faults:
        return InputError(f"there is no index of {pictures.folder} by this model yet: leave --no-update out")
    more = f" (and none of the other {len(faults) - 1} can be read either)" if len(faults) > 1 else ""
    return InputError(f"{_fault(faults[0])}{more}")


def _fault(fault: Fault) -> Fault:
    from diffclip.data.samples import Fault

    return Fault(printable(fault.name), printable(fault.reason))


def _print_json(hits: list[Hit]) -> None:
    for rank, hit in enumerate(hits, 1):
        # in ASCII: a name need not be text at all, and any reader of JSON gives it back
        print(json.dumps({"rank": rank, "score": round(hit.score, 6), "path": str(hit.path)}))


def _show(hits: list[Hit], names: list[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", justify="right")
    table.add_column("cosine", justify="right")
    table.add_column("picture", overflow="fold")
    for rank, (hit, name) in enumerate(zip(hits, names, strict=True), 1):
        table.add_row(str(rank), f"{hit.score:.3f}", Text(name))
    Console().print(table)


def _write_sheet(sheet: Path, asked: str | Image.Image, hits: list[Hit], searched: str) -> None:
    import warnings

    from diffclip.files import write_atomically
    from diffclip.report.search_sheet import MOST, Found, reduced, search_sheet, thumbnail
    from diffclip.report.style import png_of, svg_of

    query = asked if isinstance(asked, str) else reduced(asked)
    found = [
        Found(thumbnail(hit.path) if rank < MOST else None, printable(hit.path.name), hit.score)
        for rank, hit in enumerate(hits)
    ]
    with warnings.catch_warnings():
        # a name in a script that the font lacks is drawn as boxes, which the table beside it makes good
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = search_sheet(query, found, searched)
        if sheet.suffix.lower() == ".svg":
            content = svg_of(figure, ground="white").encode()
        else:
            content = png_of(figure, ground="white")
    with write_atomically(sheet) as temporary:
        temporary.write_bytes(content)

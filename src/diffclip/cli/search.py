"""`diffclip search`: find images in a folder by text or by image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffclip.cli.console import (
    Device,
    ModelName,
    none_readable_error,
    print_table,
    say,
    say_skipped,
    show_progress,
)
from diffclip.errors import InputError, require_group
from diffclip.files import check_not_input, check_writable, printable
from diffclip.maps.view import check_encoding
from diffclip.model_source import MODEL_HELP, find_model, load_with_origin, pick_device

if TYPE_CHECKING:
    from diffclip.search import ImageIndex


def search(
    folder: Annotated[Path, typer.Argument(help="A folder of images, at any depth.", metavar="FOLDER")],
    model: Annotated[str, typer.Option(help=MODEL_HELP)],
    text: Annotated[str | None, typer.Argument(help="Text to search for.", metavar="TEXT")] = None,
    image: Annotated[Path | None, typer.Option(help="Image to search for, instead of a text.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Show this many images.")] = 12,
    sheet: Annotated[Path | None, typer.Option(help="Write a contact sheet, .png or .svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per image.")] = False,
    index: Annotated[Path | None, typer.Option(help="Folder of the index; default: in the cache.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes that read images ahead.")] = 0,
    model_name: ModelName = None,
    device: Device = "auto",
) -> None:
    """Find images in a folder by what they show.

    Example: diffclip search photos/ "two dogs on a beach" --model runs/demo/DiffCLIP --sheet dogs.png

    Example: diffclip search photos/ --image dog.jpg --model runs/demo/DiffCLIP --json

    The first search embeds every image and keeps the result in an index. Later searches embed only new and changed
    images. Each model has its own index of a folder. Broken images are skipped, counted and named.
    """
    if text is None and image is None:
        raise InputError("no query: give TEXT or --image")
    if text is not None and image is not None:
        raise InputError("give TEXT or --image, not both")
    if text is not None and not text.strip():
        raise InputError("the text to search for is empty: write what the images show")
    check_encoding([text or ""])
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give a folder of images")
    if sheet is not None:
        if sheet.suffix.lower() not in (".png", ".svg"):
            raise InputError(f"{sheet} has another ending than .png or .svg: give one of them")
        require_group("search", "matplotlib")
        check_writable(sheet)
        check_not_input(sheet, [image] if image else [])
        if sheet.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{sheet} is in the folder that is searched: give a place outside")
    find_model(model)
    from diffclip.data.images import read_image
    from diffclip.search import ImageIndex

    query = read_image(image) if image else text or ""
    chosen_device = pick_device(device)
    loaded = load_with_origin(model, model_name)
    loaded.model.to(chosen_device)
    images = ImageIndex(folder, loaded, index)
    _update(images, workers)
    faults = images.faults()
    if not len(images):
        raise none_readable_error(faults)
    hits = images.search_text(query, top) if isinstance(query, str) else images.search_image(query, top)
    if sheet is not None:
        from diffclip.report.attention import search_sheet, write_figures

        searched = f"{len(images):,} images in {printable(str(folder))}, by {loaded.label}"
        write_figures([sheet], [search_sheet(query, hits, searched)], 1)
        say(f"diffclip: wrote {printable(str(sheet))}")
    if as_json:
        for rank, hit in enumerate(hits, 1):
            # in ASCII: a file name may be invalid Unicode, and any reader of JSON restores it
            print(json.dumps({"rank": rank, "score": round(hit.score, 6), "path": str(hit.path)}))
    else:
        paths = [printable(str(folder / hit.path.relative_to(images.folder))) for hit in hits]
        rows = ((str(rank), f"{hit.score:.3f}", paths[rank - 1]) for rank, hit in enumerate(hits, 1))
        print_table(("", "cosine", "image"), "rrl", rows)
    say_skipped(f"{len(faults)} of {len(images) + len(faults)} files", faults)


def _update(images: ImageIndex, workers: int) -> None:
    """Update the index and print the changes on stderr. An index that cannot be updated is used as it is."""
    try:
        with show_progress("index") as progress:
            update = images.update(progress, workers=workers)
    except InputError as error:
        if not len(images):
            raise
        say(f"diffclip: the index is not up to date: {error}")
        return
    if update.added or update.changed or update.removed:
        say(
            f"diffclip: index of {update.total:,} images: {update.added:,} added, {update.changed:,} changed, "
            f"{update.removed:,} removed"
        )

"""`diffclip attend`: where models look in images, for texts of your own."""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffclip.cli.images import ImageReader
from diffclip.cli.skipped import say_skipped
from diffclip.errors import InputError, require_group
from diffclip.files import check_writable, printable
from diffclip.model_source import MODEL_HELP, find_model, load_for_use, pick_device

if TYPE_CHECKING:
    from PIL import Image

    from diffclip.focus.attend import Attended, Prepared

_DEFAULT = Path("attend.png")
_MOST_DRAWN, _MOST_COLUMNS = 400, 24
_STRONGEST = 5


def attend(
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of them.", metavar="IMAGE...")],
    model: Annotated[list[str], typer.Option(help=f"{MODEL_HELP} Several are put side by side.")],
    text: Annotated[
        list[str] | None, typer.Option(help="What to look for; several texts are several columns.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="relevance (of patches for each text, as in the paper's Figure 2); or without a text attention (of "
            "the class token: A, or A1 − λ·A2), A1, A2 or rollout. Default: relevance with a text, attention without.",
            show_default=False,
        ),
    ] = "",
    layers: Annotated[
        str,
        typer.Option(
            help="Vision layers: last, all, or a number from 1. Default: last; for rollout all.",
            show_default=False,
        ),
    ] = "",
    head: Annotated[
        int | None, typer.Option(min=1, help="One head, from 1, instead of the mean over heads.")
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            help="Write a figure (.png, .svg, .pdf) or arrays (.npz) to this file; may be given several times "
            f"(default: {_DEFAULT}). Many images make several pages: NAME-1.png, NAME-2.png, …"
        ),
    ] = None,
    json_lines: Annotated[
        bool, typer.Option("--json", help="Print scores and strongest patches, one JSON object per image.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto prefers CUDA.")] = "auto",
) -> None:
    """Show where models look in an image, and for your texts which patches and words speak for them.

    Example: diffclip attend desk.jpg --text "a mug" --text "a lamp" --model runs/clip --model runs/diffclip

    Example: diffclip attend photos/ --model runs/demo/DiffCLIP --method A2 --head 3 --output sheet.pdf

    One image makes a figure with a row per model; several make a contact sheet. All maps of a figure share one scale.
    Arrays and --json hold the values themselves.
    """
    require_group("train", "matplotlib")
    texts = [one.strip() for one in text or []]
    if not all(texts):
        raise InputError('--text is empty: say what to look for, as in --text "a dog"')
    reals = [os.path.realpath(os.path.expanduser(source)) for source in model]
    for source, real in zip(model, reals, strict=True):
        if reals.count(real) > 1:
            raise InputError(f"--model {source} is given twice: name each model once")
        find_model(source)
    from diffclip.cli.progress import showing_progress
    from diffclip.data.images import find_images
    from diffclip.focus.attend import View, write_arrays
    from diffclip.focus.attend import attend as attend_to
    from diffclip.report.attention import (
        ARRAYS,
        DRAWN,
        attend_figures,
        page_files,
        per_page,
        seen_by,
        write_figures,
    )

    view = View(method, layers, head).resolved(texts)
    files = find_images(images)
    outputs = list(dict.fromkeys(output or ([] if json_lines else [_DEFAULT])))
    maps = len(model) * max(len(texts), 1)
    pages = math.ceil(len(files) / per_page(maps))
    for path in outputs:
        if path.suffix.lower() not in (*DRAWN, ARRAYS):
            raise InputError(f"{path} should end in {', '.join(DRAWN)} or, for arrays, {ARRAYS}")
        for file in page_files(path, pages) if path.suffix.lower() != ARRAYS else [path]:
            check_writable(file)
    drawn = [path for path in outputs if path.suffix.lower() != ARRAYS]
    if drawn:
        _check_drawable(len(files), 1 + maps)

    loaded = _load(model, device)
    _say_cut(loaded, texts)
    seen: dict[str, list[Any]] = {label: [] for label in loaded}

    def shown(reader: ImageReader) -> Iterator[Image.Image]:
        for image in reader:
            for label, one in loaded.items() if drawn else ():
                seen[label].append(seen_by(image, one))
            yield image

    with showing_progress("attend", {"images": len(files)}) as progress:
        reader = ImageReader(files, [path for path in images if not path.is_dir()], progress)
        found = attend_to(loaded, shown(reader), texts, view)
    names = [str(path) for path in reader.read]
    written: list[Path] = []
    with warnings.catch_warnings():
        # a text in a script that the font lacks is drawn as boxes
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figures = (
            attend_figures(found, seen, [path.name for path in reader.read], texts, view) if drawn else []
        )
        for path in outputs:
            written += (
                write_figures(path, figures)
                if path in drawn
                else [write_arrays(path, found, names, texts, view.method)]
            )
    for number, name in enumerate(names if json_lines else []):
        # in ASCII: a name need not be text, and any reader of JSON gives it back
        print(json.dumps(_result(found, number, name, texts)))
    for file in written:
        print(f"wrote {printable(str(file))}", file=sys.stderr if json_lines else sys.stdout)
    say_skipped(f"{len(reader.faults)} of {len(files)} images", reader.faults)


def _check_drawable(images: int, columns: int) -> None:
    for count, most, what in ((images, _MOST_DRAWN, "images"), (columns, _MOST_COLUMNS, "columns")):
        if count > most:
            raise InputError(
                f"{count} {what} are more than the {most} that are drawn: name fewer, or write arrays with "
                "--output maps.npz"
            )


def _load(sources: Sequence[str], device: str) -> dict[str, Prepared]:
    """The models by their names in figures: the variant where all differ, else the source."""
    from diffclip.config import variant_of

    place = pick_device(device)
    loaded = [load_for_use(source) for source in sources]
    for one in loaded:
        one.model.to(place)
    variants = [variant_of(one.model.config) for one in loaded]
    names = [printable(Path(source).name) for source in sources]
    for labels in (variants, names, [printable(source) for source in sources]):
        if len(set(labels)) == len(labels):
            break
    return {
        label: (one.model, one.preprocess, one.tokenizer) for label, one in zip(labels, loaded, strict=True)
    }


def _say_cut(models: Mapping[str, Prepared], texts: Sequence[str]) -> None:
    """Say on stderr which texts are longer than the context of a model."""
    from diffclip.tokenizer import Tokenizer

    cut: dict[tuple[str, int], None] = {}
    for model, _, tokenizer in models.values() if texts else ():
        most = tokenizer.context_length - 2  # start and end are tokens too
        # only a longer context shows whether there is more
        longer = Tokenizer(model.config.text.model_copy(update={"context_length": most + 3}))
        cut |= {
            (text, most): None
            for text, own in zip(texts, longer.pieces(texts), strict=True)
            if len(own) > most
        }
    for text, most in cut:
        short = printable(text if len(text) <= 40 else f"{text[:40]}…")
        print(f"diffclip: only the first {most} tokens of '{short}' are read", file=sys.stderr)


def _result(found: Mapping[str, Attended], number: int, name: str, texts: Sequence[str]) -> dict[str, Any]:
    """For image `number`, each model and each text: the score, the strongest patches and the words' relevance."""
    maps = []
    for label, one in found.items():
        for column, values in enumerate(one.maps[number]):
            best = (-abs(values)).ravel().argsort(kind="stable")[:_STRONGEST].tolist()
            width = values.shape[1]
            entry: dict[str, Any] = {"model": label}
            if texts:
                entry |= {
                    "text": texts[column],
                    "cosine": float(one.cosines[number, column]),
                    "probability": float(one.probabilities[number, column]),
                }
            entry["grid"] = list(values.shape)
            entry["strongest"] = [
                {"row": at // width, "column": at % width, "value": float(values.flat[at])}
                for at in best
                if values.flat[at]
            ]
            if texts:
                spoken = one.spoken[number, column].tolist()
                entry["tokens"] = [
                    {"token": piece.strip(), "relevance": value}
                    for piece, value in zip(one.pieces[column], spoken, strict=False)
                ]
            maps.append(entry)
    return {"image": name, "maps": maps}

"""`diffclip attend`: where models look in pictures, for texts of your own."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffclip.cli.skipped import say_skipped
from diffclip.errors import InputError
from diffclip.model_source import MODEL_HELP, load_for_use, pick_device

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from diffclip.data.samples import Fault
    from diffclip.evaluation.embed import Progress
    from diffclip.focus.attend import Attended, Prepared

_DEFAULT = Path("attend.png")
_SIDE = 288  # pixels of a picture in a figure
_MOST_DRAWN = 400
_MOST_COLUMNS = 24
_STRONGEST = 5
_TOLD = 40  # letters of a text in a message


def attend(
    images: Annotated[list[Path], typer.Argument(help="Pictures, or folders of them.", metavar="IMAGE...")],
    model: Annotated[list[str], typer.Option(help=f"{MODEL_HELP} Several are put side by side.")],
    text: Annotated[
        list[str] | None, typer.Option(help="What to look for; several texts are several columns.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="relevance (of patches for each text, as in the paper's Figure 2); or without a text rollout, "
            "attention (of the class token: A, or A1 − λ·A2), A1 or A2."
        ),
    ] = "relevance",
    layers: Annotated[
        str | None,
        typer.Option(
            help="Vision layers that the maps are of: last, all, or a number from 1 (default: last; for rollout all)."
        ),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            help="Write a figure (.png, .svg, .pdf) or arrays (.npz) to this file; may be given several times "
            f"(default: {_DEFAULT}). More than 20 pictures make several pages: NAME-1.png, NAME-2.png, …"
        ),
    ] = None,
    json_lines: Annotated[
        bool,
        typer.Option(
            "--json", help="Print scores and strongest patches, a JSON object a picture, one a line."
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto prefers CUDA.")] = "auto",
) -> None:
    """Show where models look in a picture for each of your texts, and which words they look for.

    Example: diffclip attend desk.jpg --text "a mug" --text "a lamp" --model runs/clip --model runs/diffclip

    Example: diffclip attend photos/ --text "a dog" --model runs/demo/DiffCLIP --output sheet.pdf --output maps.npz

    One picture makes a figure with a row a model; several make a contact sheet with a row a picture. A colour says how
    many times the average patch of its map a patch has, so that models, texts and pictures can be compared; what is
    below the average stays grey. Arrays and --json hold the values themselves.
    """
    from diffclip.errors import require_group

    require_group("train", "matplotlib")
    from diffclip.data.images import find_images
    from diffclip.files import check_writable, printable
    from diffclip.focus.attend import attend as attend_to
    from diffclip.focus.attend import check_request
    from diffclip.report.attend_files import ARRAYS, check_suffix, page_files, write_arrays, write_pages
    from diffclip.report.attend_pages import PAGE, attention_pages

    texts = [one.strip() for one in text or []]
    if not all(texts):
        raise InputError('--text is empty: say what to look for, as in --text "a dog"')
    check_request(method, texts)
    files = find_images(images)
    pages = -(-len(files) // PAGE)
    outputs = list(dict.fromkeys(output or ([] if json_lines else [_DEFAULT])))
    drawn = [path for path in outputs if path.suffix.lower() != ARRAYS]
    for path in outputs:
        check_suffix(path)
        for file in page_files(path, pages) if path in drawn else [path]:
            check_writable(file)
    columns = 1 + len(model) * max(len(texts), 1)
    if drawn:
        _check_drawable(len(files), columns)

    loaded = _load(model, device)
    _say_cut(loaded, texts)
    reading = _Reading(files, {path for path in images if not path.is_dir()}, loaded, bool(drawn))
    from diffclip.cli.progress import showing_progress

    with showing_progress("attend", {"pictures": len(files)}) as progress:
        found = attend_to(loaded, reading.pictures(progress), texts, method, layers)
    names = [str(path) for path in reading.read]
    written: list[Path] = []
    with warnings.catch_warnings():
        # of a text in a script that the figure's font lacks: the boxes in the figure say it
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        shown = [path.name for path in reading.read]
        figures = attention_pages(found, reading.views, shown, texts, method, layers) if drawn else []
        for path in outputs:
            if path in drawn:
                written += write_pages(path, figures, pages)
            else:
                written.append(write_arrays(path, found, names, texts, method))
    if json_lines:
        for number, name in enumerate(names):
            # in ASCII: a name need not be text at all, and any reader of JSON gives it back
            print(json.dumps(_result(found, number, name, texts)))
    else:
        for file in written:
            print(f"wrote {printable(str(file))}")
    say_skipped(f"{len(reading.faults)} of {len(files)} pictures", reading.faults)


def _check_drawable(pictures: int, columns: int) -> None:
    if pictures > _MOST_DRAWN:
        raise InputError(
            f"{pictures} pictures are more than the {_MOST_DRAWN} that are drawn: name fewer, or write arrays "
            "with --output maps.npz"
        )
    if columns > _MOST_COLUMNS:
        raise InputError(
            f"{columns} columns are more than the {_MOST_COLUMNS} that are drawn: give fewer texts or models, or write "
            "arrays with --output maps.npz"
        )


def _load(sources: Sequence[str], device: str) -> dict[str, Prepared]:
    """The models by what figures call them: the variant where that tells them apart, else the source."""
    from diffclip.config import variant_of
    from diffclip.files import printable

    reals = [os.path.realpath(os.path.expanduser(source)) for source in sources]
    for source, real in zip(sources, reals, strict=True):
        if reals.count(real) > 1:
            raise InputError(f"--model {source} is given twice: name each model once")
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
    """Say on stderr which texts are longer than what a model reads of them."""
    from diffclip.files import printable
    from diffclip.tokenizer import Tokenizer

    cut: dict[tuple[str, int], None] = {}
    for model, _, tokenizer in models.values():
        most = tokenizer.context_length - 2  # start and end are tokens too
        full = [text for text, own in zip(texts, tokenizer.pieces(texts), strict=True) if len(own) == most]
        if full:
            # only a context that has room for more shows whether there is more
            roomier = model.config.text.model_copy(update={"context_length": most + 3})
            pieces = Tokenizer(roomier).pieces(full)
            cut |= {(text, most): None for text, own in zip(full, pieces, strict=True) if len(own) > most}
    for text, most in cut:
        short = printable(text if len(text) <= _TOLD else f"{text[:_TOLD]}…")
        print(f"diffclip: only the first {most} tokens of '{short}' are read", file=sys.stderr)


@dataclass
class _Reading:
    """The pictures as they are read, and what is left of them: their files, views and faults."""

    files: Sequence[Path]
    named: set[Path]
    models: Mapping[str, Prepared]
    drawn: bool
    read: list[Path] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    views: dict[str, list[np.ndarray[Any, Any]]] = field(default_factory=dict)

    def pictures(self, progress: Progress) -> Iterator[Image.Image]:
        """Each that can be read.

        Raises:
            InputError: one of the files in `named`, or all others, cannot be read.
        """
        from diffclip.data.images import read_image
        from diffclip.data.samples import Fault, sample_fault
        from diffclip.files import printable
        from diffclip.report.attend_view import as_seen

        for file in self.files:
            try:
                picture = read_image(file)
            except InputError as error:
                if file in self.named:
                    raise
                fault = sample_fault(str(file), error)
                self.faults.append(Fault(printable(fault.name), printable(fault.reason)))
                continue
            finally:
                progress("pictures", 1, None)
            self.read.append(file)
            if self.drawn:
                for label, (_, preprocess, _) in self.models.items():
                    self.views.setdefault(label, []).append(as_seen(picture, preprocess, _SIDE))
            yield picture
        if not self.read:
            more = f" (and none of the other {len(self.files) - 1} can be read either)" * (
                len(self.files) > 1
            )
            raise InputError(f"{self.faults[0].name}: {self.faults[0].reason}{more}")


def _result(found: Mapping[str, Attended], number: int, name: str, texts: Sequence[str]) -> dict[str, Any]:
    """Of picture `number`: for each model and text the score, the strongest patches and the words' relevance."""
    maps = []
    for label, one in found.items():
        for column in range(one.maps.shape[1]):
            values = one.maps[number, column]
            best = (-abs(values)).ravel().argsort(kind="stable")[:_STRONGEST].tolist()
            width = values.shape[1]
            entry: dict[str, Any] = {"model": label}
            if texts:
                entry |= {
                    "text": texts[column],
                    "cosine": float(one.cosines[number, column]),
                    "probability": float(one.probabilities[number, column]),
                }
            entry |= {
                "grid": list(values.shape),
                "strongest": [
                    {"row": at // width, "column": at % width, "value": float(values.flat[at])}
                    for at in best
                    if values.flat[at]
                ],
            }
            if texts:
                spoken = one.spoken[number, column].tolist()
                entry["tokens"] = [
                    {"token": piece.strip(), "relevance": value}
                    for piece, value in zip(one.pieces[column], spoken, strict=False)
                ]
            maps.append(entry)
    return {"image": name, "maps": maps}

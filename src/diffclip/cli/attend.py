"""`diffclip attend`: draw where models look in images, for texts of your own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffclip.cli.console import Device, print_table, read_images, say_loading, say_skipped, show_progress
from diffclip.errors import Fault, InputError, require_group
from diffclip.files import check_not_input, check_writable, printable
from diffclip.maps.view import OF_TEXTS, View
from diffclip.sources.load import load_with_origin, pick_device, warn_of_photographs
from diffclip.sources.registry import MODEL_HELP, find_model

if TYPE_CHECKING:
    from PIL import Image

    from diffclip.data.workers import Progress
    from diffclip.maps.attend import Attended, Prepared

_DRAWN, _ARRAYS = (".png", ".svg", ".pdf"), ".npz"
_DEFAULT = Path("attend.png")
_METHODS = (
    "With a text: relevance (as in the paper's Figure 2), grad-eclip or legrad. Without: attention (the class token's "
    "row of A, or A1 − λ·A2), A1, A2 or rollout. Default: relevance with a text, attention without."
)
_LAYERS = "Vision layers: last, all, or a number from 1. Default: last, or all for rollout and legrad."
_PATCH = "Draw where this patch looks, in place of the class token; counted from 1 at the top left."
_OUTPUT = (
    "Write a figure (.png, .svg, .pdf) or arrays (.npz) to this file; may be given several times "
    f"(default: {_DEFAULT}). Several images make several files: NAME-1.png, NAME-2.png, …"
)


def attend(
    images: Annotated[
        list[Path], typer.Argument(help="Images, or folders of them.", metavar="IMAGE", exists=True)
    ],
    model: Annotated[list[str], typer.Option(help=f"{MODEL_HELP} Several models make a row each.")],
    text: Annotated[list[str] | None, typer.Option(help="Text to look for; each text is a column.")] = None,
    method: Annotated[str, typer.Option(help=_METHODS, show_default=False)] = "",
    layers: Annotated[str, typer.Option(help=_LAYERS, show_default=False)] = "",
    head: Annotated[
        int | None, typer.Option(min=1, help="One head, counted from 1, instead of the mean over heads.")
    ] = None,
    patch: Annotated[str | None, typer.Option(help=_PATCH, metavar="<row,column>")] = None,
    words: Annotated[
        bool, typer.Option("--words", help="Print how much each token of a text speaks for the image.")
    ] = False,
    output: Annotated[list[Path] | None, typer.Option(help=_OUTPUT)] = None,
    device: Device = "auto",
) -> None:
    """Draw where models look in images, and which patches and words support your texts.

    Example: diffclip attend desk.jpg --text "a mug" --text "a lamp" --model runs/clip --model runs/diffclip

    Example: diffclip attend photos/ --model runs/demo/DiffCLIP --method A2 --head 2 --output maps.pdf

    Example: diffclip attend desk.jpg --model runs/clip --patch 2,5

    Example: diffclip attend desk.jpg --text "a mug on a desk" --model runs/diffclip --words

    Each image makes a figure with a row per model. All maps share one scale; a model whose maps would look empty on it
    gets a second row on a scale of its own.
    Arrays (.npz) hold the maps, scores and relevance of words as numbers.
    """
    require_group("report", "matplotlib")
    texts = [phrase.strip() for phrase in text or []]
    if not all(texts):
        raise InputError('--text is empty: say what to look for, as in --text "a dog"')
    view = View(method, layers, head, _parse_patch(patch)).resolved(texts)
    if len({os.path.realpath(source) for source in model}) < len(model):
        raise InputError("--model has a model twice: name each model once")
    for source in model:
        find_model(source)
    if words and view.method not in OF_TEXTS:
        raise InputError('--words is about texts: give at least one, as in --text "a dog"')
    outputs = list(dict.fromkeys(output or [_DEFAULT]))
    for path in outputs:
        if path.suffix.lower() not in (*_DRAWN, _ARRAYS):
            raise InputError(f"{path} should end in {', '.join(_DRAWN)} or, for arrays, {_ARRAYS}")
        check_writable(path)
    from diffclip.data.images import find_images

    files = find_images(images)
    for path in outputs:
        numbers = range(1, len(files) + 1) if len(files) > 1 else ()
        for written_to in (path, *(path.with_name(f"{path.stem}-{n}{path.suffix}") for n in numbers)):
            check_not_input(written_to, files)
    drawn = [path for path in outputs if path.suffix.lower() != _ARRAYS]
    say_loading(model)
    from diffclip.maps.attend import attend as attend_to
    from diffclip.maps.attend import write_arrays
    from diffclip.report.attention import attend_figures, model_view, write_figures

    loaded = _load(model, device)
    views: dict[str, list[Any]] = {label: [] for label in loaded}
    read: list[Path] = []
    faults: list[Fault] = []

    def readable_images(progress: Progress) -> Iterator[Image.Image]:
        for file, image in read_images(files, images, progress, faults):
            read.append(file)
            for label, prepared in loaded.items() if drawn else ():
                views[label].append(model_view(image, prepared))
            yield image

    with show_progress("attend") as progress:
        attended = attend_to(loaded, readable_images(progress), texts, view)
    names = [path.name for path in read]
    figures = attend_figures(attended, views, names, texts, view) if drawn else []
    written = write_figures(drawn, figures, len(names))
    for path in outputs:
        if path not in drawn:
            written.append(write_arrays(path, attended, list(map(str, read)), texts, view.method))
    for file in written:
        print(f"wrote {printable(str(file))}")
    if words:
        _print_words(attended, names, texts)
    say_skipped(f"{len(faults)} of {len(files)} images", faults)


def _print_words(attended: Mapping[str, Attended], images: Sequence[str], texts: Sequence[str]) -> None:
    """Print the relevance of each token of the texts, with its share of the text's."""
    rows = [
        (printable(images[i]), label, printable(text), token, f"{relevance:.3g}", f"{share:.0%}")
        for label, result in attended.items()
        for i, of_image in enumerate(result.spoken)
        for text, tokens, values in zip(texts, result.pieces, of_image, strict=True)
        for token, relevance, share in zip(tokens, values, values / (values.sum() or 1), strict=False)
    ]
    print_table(("image", "model", "text", "token", "relevance", "share"), "llllrr", rows)


def _parse_patch(patch: str | None) -> tuple[int, int] | None:
    if patch is None:
        return None
    row, _, column = patch.partition(",")
    if not (row.strip().isdecimal() and column.strip().isdecimal()):
        raise InputError(f"--patch {patch} is not a row and a column: write two numbers, as in --patch 2,5")
    return int(row), int(column)


def _load(sources: Sequence[str], device: str) -> dict[str, Prepared]:
    """Load the models by label: the variants if all differ, else the last parts of the sources, else the sources."""
    from diffclip.config import variant_of

    chosen_device = pick_device(device)
    loaded = [load_with_origin(source) for source in sources]
    for bundle in loaded:
        warn_of_photographs(bundle)
    variants = [variant_of(bundle.model.config) for bundle in loaded]
    for labels in (
        variants,
        [printable(Path(source).name) for source in sources],
        list(map(printable, sources)),
    ):
        if len(set(labels)) == len(labels):
            break
    prepared = ((bundle.model.to(chosen_device), bundle.preprocess, bundle.tokenizer) for bundle in loaded)
    return dict(zip(labels, prepared, strict=True))

"""`diffclip classify`: label images with labels of your own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffclip.cli.console import (
    Device,
    ModelName,
    print_table,
    read_images,
    say_loading,
    say_skipped,
    show_progress,
)
from diffclip.errors import Fault, InputError
from diffclip.files import printable, read_text
from diffclip.sources.load import Loaded, load_with_origin, pick_device, warn_of_photographs
from diffclip.sources.registry import MODEL_HELP, find_model

if TYPE_CHECKING:
    from PIL import Image

_BATCH = 64


def classify(
    images: Annotated[
        list[Path], typer.Argument(help="Images, or folders of them.", metavar="IMAGE", exists=True)
    ],
    labels: Annotated[str, typer.Option(help='Labels: "cat, dog", or @FILE with one per line.')],
    model: Annotated[str, typer.Option(help=MODEL_HELP)],
    template: Annotated[str, typer.Option(help="Text for a label, with {c} for it.")] = "a photo of a {c}.",
    top: Annotated[int, typer.Option(min=1, help="Show this many labels per image.")] = 5,
    json_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object per image.")] = False,
    model_name: ModelName = None,
    device: Device = "auto",
) -> None:
    """Label images with labels of your own, with probabilities.

    Example: diffclip classify photos/ --labels "cat, dog, train" --model hf-hub:hammh0a/DiffCLIP_ViTB16_CC12M

    Unreadable images in a folder are skipped, counted and named at the end. An image that you name must be readable.
    """
    names = parse_labels(labels)
    if "{c}" not in template and "{}" not in template:
        raise InputError(f"--template {template!r} has no place for the label: write {{c}} where it goes")
    find_model(model)
    from diffclip.data.images import find_images

    files = find_images(images)
    say_loading([model])
    chosen_device = pick_device(device)
    loaded = load_with_origin(model, model_name, only_clip=False)
    warn_of_photographs(loaded)
    if not getattr(loaded.model, "has_texts", True):
        raise InputError(f"{model} has no texts to compare images with: give a model of images and texts")
    loaded.model.to(chosen_device)
    faults: list[Fault] = []
    with show_progress("classify") as progress:
        rows = _probabilities(loaded, read_images(files, images, progress, faults), names, template)
    results = []
    for file, row in rows:
        best = sorted(zip(names, row, strict=True), key=lambda pair: -pair[1])
        results.append({"image": str(file), "label": best[0][0], "probabilities": dict(best[:top])})
    if json_lines:
        for result in results:
            print(json.dumps(result))  # in ASCII: a file name may be invalid Unicode
    else:
        _show(results)
    say_skipped(f"{len(faults)} of {len(files)} images", faults)


def parse_labels(labels: str) -> list[str]:
    """Split labels at commas, or read them from the file named after an @, one per line. An empty label, a single
    one, or the same label twice (in any case) raises `InputError`."""
    if labels.startswith("@"):
        lines = read_text(Path(labels[1:])).split("\n")
        names = [line.strip() for line in lines if line.strip()]
        if not names:
            raise InputError(f"{labels[1:]} has no label in it: write one per line")
    else:
        names = [name.strip() for name in labels.split(",")]
    if not all(names):
        raise InputError(f"--labels {labels!r} has an empty label: write them as in 'cat, dog'")
    if len(names) < 2:
        raise InputError(
            f"--labels has {names[0]!r} alone, which would always be right: give two or more, or @FILE for a file"
        )
    folded = [name.casefold() for name in names]
    for i, name in enumerate(names):
        if folded[i] in folded[:i]:
            raise InputError(f"--labels has {name!r} twice: name each label once")
    return names


def _probabilities(
    loaded: Loaded, images: Iterator[tuple[Path, Image.Image]], names: list[str], template: str
) -> list[tuple[Path, list[float]]]:
    """Compute the probabilities of the labels for each image."""
    import torch

    from diffclip.evaluation.embed import build_classifier, embed_images, evaluation_mode

    classifier = build_classifier(loaded.model, loaded.tokenizer, names, [template], _BATCH)
    # prepare images one at a time: a batch of full-size photos would be gigabytes
    prepared = ((file, loaded.preprocess(image)) for file, image in images)
    rows: list[tuple[Path, list[float]]] = []
    with evaluation_mode(loaded.model):
        while batch := list(islice(prepared, _BATCH)):
            pixels = torch.stack([image for _, image in batch])
            logits = loaded.model.logit_scale.exp() * embed_images(loaded.model, pixels) @ classifier
            if not logits.isfinite().all():
                raise InputError(f"{loaded.weights} gives numbers that are not finite: use other weights")
            rows += zip((file for file, _ in batch), logits.softmax(-1).tolist(), strict=True)
    return rows


def _show(results: list[dict[str, Any]]) -> None:
    from rich.bar import Bar
    from rich.text import Text

    rows: list[Any] = []
    for result in results:
        for rank, (name, share) in enumerate(result["probabilities"].items()):
            label = Text(name, style="" if rank else "bold")
            bar = Bar(size=1, begin=0, end=share, width=20)
            rows.append(("" if rank else printable(result["image"]), label, bar, f"{share:.1%}"))
        rows.append(None)
    print_table(("image", "label", "", "probability"), "lllr", rows)

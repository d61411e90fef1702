"""`diffclip convert`: between the published layout and a saved folder, without loss."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffclip.model_source import find_model


def convert(
    source: Annotated[
        str, typer.Argument(help="A run or saved folder, a published file, or hf-hub:OWNER/NAME.")
    ],
    target: Annotated[Path, typer.Argument(help="NAME.pt for the published layout, else a folder.")],
    model_name: Annotated[
        str | None, typer.Option(help="What a published file holds, if it cannot tell (DiffCLIP-dynamic-…).")
    ] = None,
) -> None:
    """Convert weights: published .pt to a saved folder, and back.

    Example: diffclip convert checkpoint_best.pt my-diffclip

    Example: diffclip convert my-diffclip checkpoint.pt
    """
    from diffclip.config import name_of
    from diffclip.errors import InputError
    from diffclip.loading import load
    from diffclip.weights import save_published, save_weights

    found = find_model(source)
    if found is None:
        raise InputError(
            f"{source} is a model's name, which has no weights to convert: give a folder or a file"
        )
    if target.suffix == ".safetensors":
        raise InputError(
            f"{target}: give a folder (it gets model.safetensors and config.json), or a .pt file"
        )
    model, _, _ = load(found, model=model_name)
    if target.suffix in (".pt", ".pth"):
        save_published(model, target)
    else:
        if target.is_file():
            raise InputError(f"{target} is a file: give a folder, or a name that ends in .pt")
        save_weights(model, target)
    print(f"{target}: {name_of(model.config)}, {sum(p.numel() for p in model.parameters()):,} parameters")

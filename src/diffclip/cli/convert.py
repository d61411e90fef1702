"""`diffclip convert`: convert weights between layouts without loss, between libraries, and to a differential model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffclip.cli.console import ModelName
from diffclip.errors import InputError, require_group
from diffclip.files import check_new
from diffclip.sources.load import load_with_origin
from diffclip.sources.registry import find_model

_SOURCE = (
    "A run or saved folder, a published file, hf-hub:OWNER/NAME, open_clip:NAME/PRETRAINED (a tag or a file), or "
    "transformers:NAME (a folder or a name on the hub)."
)
_TO_DIFFERENTIAL = (
    "Add a second attention map to each layer of a plain CLIP; outputs stay the same until it is trained."
)
_TO_TRANSFORMERS = "Write a folder for transformers' Auto classes: model, processor and tokenizer."


def convert(
    source: Annotated[str, typer.Argument(help=_SOURCE)],
    target: Annotated[Path, typer.Argument(help="NAME.pt for the published layout, else a new folder.")],
    to_differential: Annotated[bool, typer.Option("--to-differential", help=_TO_DIFFERENTIAL)] = False,
    to_transformers: Annotated[bool, typer.Option("--transformers", help=_TO_TRANSFORMERS)] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed of the parts that --to-differential adds (default 0).")
    ] = None,
    model_name: ModelName = None,
) -> None:
    """Convert weights between published .pt files, saved folders and transformers, and from open_clip.

    No existing file is replaced.

    Example: diffclip convert checkpoint_best.pt my-diffclip

    Example: diffclip convert my-diffclip checkpoint.pt

    Example: diffclip convert open_clip:ViT-B-32/openai my-clip

    Example: diffclip convert transformers:openai/clip-vit-base-patch16 my-diffclip --to-differential

    Example: diffclip convert my-diffclip for-transformers --transformers
    """
    if target.suffix == ".safetensors":
        raise InputError(
            f"{target}: give a folder (it gets model.safetensors and config.json), or a .pt file"
        )
    published = target.suffix in (".pt", ".pth")
    if published and (to_differential or to_transformers):
        option = "--to-differential" if to_differential else "--transformers"
        raise InputError(f"{target}: the published layout cannot hold a model of {option}: give a folder")
    if seed is not None and not to_differential:
        raise InputError("--seed needs --to-differential: nothing else is drawn")
    if to_transformers:
        require_group("vlm", "transformers")
    check_new(target)
    if find_model(source) is None:
        raise InputError(
            f"{source} is a model's name, which has no weights to convert: give a folder or a file"
        )
    loaded = load_with_origin(source, model_name)
    model = loaded.model

    from diffclip.config import name_of
    from diffclip.weights import save_published, save_weights

    if to_differential:
        from diffclip.sources.conversion import to_differential as make_differential

        model = make_differential(model, seed or 0)
    origin = None if to_differential else loaded.origin
    if published:
        save_published(model, target, origin)
    elif to_transformers:
        from diffclip.integrations.transformers import save_transformers

        save_transformers(model, target)
    else:
        save_weights(model, target, origin=origin)
    print(f"{target}: {name_of(model.config)}, {sum(p.numel() for p in model.parameters()):,} parameters")

"""`diffclip convert`: between layouts without loss, from and to other libraries, and from plain to differential."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffclip.model_source import find_model

if TYPE_CHECKING:
    from diffclip.model import CLIP


def convert(
    source: Annotated[
        str,
        typer.Argument(
            help="A run or saved folder, a published file, hf-hub:OWNER/NAME, open_clip:ARCHITECTURE:WEIGHTS (a tag "
            "or a file), or transformers:NAME (a folder or a name on the hub)."
        ),
    ],
    target: Annotated[Path, typer.Argument(help="NAME.pt for the published layout, else a folder.")],
    to_differential: Annotated[
        bool,
        typer.Option(
            "--to-differential",
            help="Add a second attention map to each layer of a plain CLIP; outputs stay the same until it is trained.",
        ),
    ] = False,
    to_transformers: Annotated[
        bool,
        typer.Option(
            "--transformers",
            help="Write a folder for transformers' Auto classes: model, processor and tokenizer.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of what --to-differential adds.")] = 0,
    model_name: Annotated[
        str | None, typer.Option(help="What a published file holds, if it cannot tell (DiffCLIP-dynamic-…).")
    ] = None,
) -> None:
    """Convert weights: published .pt to a saved folder and back; a ViT CLIP of open_clip or transformers to ours; ours
    to transformers and back.

    Example: diffclip convert checkpoint_best.pt my-diffclip

    Example: diffclip convert my-diffclip checkpoint.pt

    Example: diffclip convert open_clip:ViT-B-32:openai my-clip

    Example: diffclip convert transformers:openai/clip-vit-base-patch16 my-diffclip --to-differential

    Example: diffclip convert my-diffclip for-transformers --transformers
    """
    from diffclip.config import name_of
    from diffclip.errors import InputError, require_group
    from diffclip.weights import save_published, save_weights

    if target.suffix == ".safetensors":
        raise InputError(
            f"{target}: give a folder (it gets model.safetensors and config.json), or a .pt file"
        )
    published = target.suffix in (".pt", ".pth")
    if target.is_file() and not published:
        raise InputError(f"{target} is a file: give a folder, or a name that ends in .pt")
    if published and to_differential:
        raise InputError(f"{target}: what --to-differential makes has no published layout, give a folder")
    if to_transformers:
        require_group("vlm", "transformers")
        if published:
            raise InputError(f"{target}: --transformers writes a folder, give a name without .pt")
        if target.exists():
            raise InputError(f"{target} exists: --transformers writes a new folder, choose another name")
    model = _read(source, model_name)
    if to_differential:
        import diffclip.convert

        model = diffclip.convert.to_differential(model, seed)
    if published:
        save_published(model, target)
    elif to_transformers:
        from diffclip.integrations.transformers import save_transformers

        save_transformers(model, target)
    else:
        save_weights(model, target)
    print(f"{target}: {name_of(model.config)}, {sum(p.numel() for p in model.parameters()):,} parameters")


def _read(source: str, model_name: str | None) -> CLIP:
    from diffclip.convert.sources import TRANSFORMERS, is_foreign, read_foreign, reading, transformers_kind
    from diffclip.errors import InputError
    from diffclip.loading import load

    if is_foreign(source):
        if model_name is not None:
            raise InputError(f"{source} tells what it is: leave --model-name out")
        if transformers_kind(source) == "diffclip":
            from diffclip.integrations.transformers import load_transformers

            with reading(source):
                return load_transformers(source.removeprefix(TRANSFORMERS), source)
        return read_foreign(source)
    found = find_model(source)
    if found is None:
        raise InputError(
            f"{source} is a model's name, which has no weights to convert: give a folder or a file"
        )
    return load(found, model=model_name)[0]

"""`diffclip export`: both towers as ONNX files, checked in onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffclip.cli.console import ModelName, say, show_progress
from diffclip.errors import InputError, require_group
from diffclip.files import check_new
from diffclip.model_source import MODEL_HELP, load_with_origin


def export(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    image_size: Annotated[
        int | None, typer.Option(min=1, help="Image size in pixels, fixed by the export.")
    ] = None,
    model_name: ModelName = None,
) -> None:
    """Write both towers as ONNX, to be used without torch; files are kept only if onnxruntime agrees with torch.

    Example: diffclip export runs/demo/DiffCLIP my-onnx

    FOLDER gets image.onnx, text.onnx, config.json and, if transformers is installed, tokenizer.json. Features have
    unit length. Each tower's line shows the largest difference between onnxruntime and torch.
    """
    require_group("export", "onnx", "onnxruntime", "onnxscript")
    check_new(folder)
    loaded = load_with_origin(model, model_name, image_size)
    from diffclip.convert.onnx import TOKENIZER_FILE, export_onnx

    tokenizer = None
    try:
        require_group("vlm", "transformers")
        from diffclip.integrations.transformers import tokenizer_of

        tokenizer = tokenizer_of(loaded.model.config)
    except InputError as error:
        say(f"diffclip: no {TOKENIZER_FILE}: {error}")
    with show_progress("export") as progress:
        exported = export_onnx(loaded.model, folder, tokenizer, on_tower=lambda: progress("towers", 1, 2))
    for tower in exported:
        print(f"{tower.file}: {tower.size / 1e6:,.1f} MB, error {tower.error:.0e}")

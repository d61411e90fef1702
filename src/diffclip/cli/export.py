"""`diffclip export`: both towers as ONNX files, checked in onnxruntime."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffclip.cli.progress import showing_progress
from diffclip.errors import require_group
from diffclip.model_source import MODEL_HELP, load_for_use

if TYPE_CHECKING:
    from diffclip.config import CLIPConfig
    from diffclip.convert.onnx import Exported


def export(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    image_size: Annotated[
        int | None, typer.Option(min=1, help="Take pictures of this size, which is fixed from then on.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0, help="Time to spend on measuring, about; 0 leaves it out.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    model_name: Annotated[
        str | None, typer.Option(help="What a published file holds, if it cannot tell.")
    ] = None,
) -> None:
    """Write both towers as ONNX, to be used without torch; nothing is kept unless onnxruntime agrees with torch.

    Example: diffclip export runs/demo/DiffCLIP my-onnx

    FOLDER gets image.onnx, text.onnx, config.json and, where transformers is installed, tokenizer.json. Features have
    unit length. The line of a tower says how far onnxruntime is from torch, and how long both take on this CPU.
    """
    require_group("export", "onnx", "onnxruntime", "onnxscript")
    from diffclip.convert.onnx import check_folder, export_onnx

    check_folder(folder)
    loaded = load_for_use(model, model_name, image_size)
    tokenizer = _tokenizer(loaded.model.config)
    with showing_progress("export", {"towers": 2, "towers measured": 2}) as progress:
        exported = export_onnx(loaded.model, folder, tokenizer, tell=lambda: progress("towers", 1, None))
        rows = []
        for done in exported:
            rows.append(_row(done, seconds / 2))
            if seconds:
                progress("towers measured", 1, None)
    if as_json:
        print(json.dumps({"folder": str(folder), "model": loaded.label, "towers": rows}))
        return
    for row in rows:
        print(_line(row))


def _tokenizer(config: CLIPConfig) -> Any:
    """transformers' tokenizer for the model, or None and a line on stderr that says why there is none."""
    from diffclip.convert.onnx import TOKENIZER_FILE, has_tokenizer

    why = None
    if not has_tokenizer(config):
        why = "the model's vocabulary is not the tokenizer's"
    elif importlib.util.find_spec("transformers") is None:
        why = "it needs transformers, run pip install 'diffclip[vlm]'"
    if why is not None:
        print(f"diffclip: no {TOKENIZER_FILE}: {why}", file=sys.stderr)
        return None
    from diffclip.integrations.transformers import tokenizer_of

    return tokenizer_of(config)


def _row(done: Exported, seconds: float) -> dict[str, Any]:
    from diffclip.convert.onnx import OPSET, measure

    return {
        "tower": done.tower.name,
        "file": str(done.file),
        "opset": OPSET,
        "bytes": done.size,
        "parameters": done.parameters,
        "error": done.error,
        "item": done.tower.item,
        "latency": measure(done, seconds) if seconds else {},
    }


def _line(row: dict[str, Any]) -> str:
    from diffclip.convert.onnx_runtime import PLACES

    parts = [
        f"{row['bytes'] / 1e6:,.1f} MB",
        f"{row['parameters']:,} parameters",
        f"error {row['error']:.0e}",
    ]
    times, absent = [], []
    for batch, found in row["latency"].items():
        if "why" in found:
            absent.append(f"batch {batch} not measured, {found['why']}")
            continue
        ours, torchs = (found[name]["median_ms"] for name in PLACES)
        times.append(f"{ours:.1f} ms at batch {batch} ({torchs:.1f} in torch, ratio {found['ratio']:.2f})")
    told = [", ".join(parts)] + ([f"a {row['item']} takes {', '.join(times)}"] if times else []) + absent
    return f"{row['file']}: {'; '.join(told)}"

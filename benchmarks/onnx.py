"""Time CLIP and DiffCLIP in onnxruntime and in torch: milliseconds for one image and one text, measured in turns.

    python -m benchmarks.onnx [--size ViT-B-16] [--seconds 120] [--threads 2] [--document docs/export.md]

Both models are exported as `diffclip export` does it, with random weights. Texts fill the context. Writes onnx.json,
and, if a document is given, the table between its markers.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.about import about, add_common_options, parser_of, write_json
from benchmarks.tables import describe, fill, table_of
from diffclip.benchmarking.timing import make_sampler, summarize, take_turns
from diffclip.convert.onnx import export_onnx, open_session, run
from diffclip.model import create_model

VARIANTS = ("CLIP", "DiffCLIP")
PLACES = ("onnxruntime", "torch")
_ROUNDS = 200


def measure(size: str, seconds: float, scratch: Path) -> dict[str, dict[str, Any]]:
    """Measure the times of one input, by tower and by "VARIANT PLACE" (such as "CLIP torch")."""
    models = {name: create_model(f"{name}-{size}", seed=0).eval() for name in VARIANTS}
    exported = {name: export_onnx(model, scratch / name) for name, model in models.items()}
    times = {}
    for index, tower in enumerate(("image", "text")):
        samplers = {}
        with torch.inference_mode():
            for name in VARIANTS:
                export = exported[name][index]
                session, inputs = open_session(export.file), export.tower.random_inputs(1)
                calls = (
                    lambda session=session, inputs=inputs: run(session, inputs),
                    lambda encode=export.tower, inputs=inputs: encode(inputs),
                )
                for place, call in zip(PLACES, calls, strict=True):
                    samplers[f"{name} {place}"] = make_sampler([call], inputs.device)
            samples, failures = take_turns(samplers, _ROUNDS, seconds / 2)
        if failures:
            raise SystemExit(f"{tower}: {failures}")
        times[tower] = {name: summarize(taken) for name, taken in samples.items()}
    return times


def table(result: dict[str, Any]) -> list[str]:
    """Return the table as lines of Markdown."""
    facts = result["about"]
    head = "tower | model | onnxruntime ms | torch ms | onnxruntime to torch | to CLIP in onnxruntime"
    lines = []
    for tower, rows in result["towers"].items():
        plain = rows["CLIP onnxruntime"]["median_ms"]
        for name in VARIANTS:
            ours, torchs = (rows[f"{name} {place}"] for place in PLACES)
            cells = [tower, name]
            for row in (ours, torchs):
                cells.append(f"{row['median_ms']:.1f} ± {(row['high_ms'] - row['low_ms']) / 2:.1f}")
            cells += [f"{ours['median_ms'] / torchs['median_ms']:.2f}", f"{ours['median_ms'] / plain:.2f}"]
            lines.append(cells)
    return [f"{describe(facts)}, {facts['size']}:", "", *table_of(head, lines)]


def main() -> None:
    parser = parser_of(__doc__)
    add_common_options(parser, seconds=120)
    parser.add_argument("--size", default="ViT-B-16")
    parser.add_argument("--document", type=Path, help="put the table between its markers")
    options = parser.parse_args()
    options.device = "cpu"
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        towers = measure(options.size, options.seconds, Path(scratch))
    result = {"about": about("onnx", options) | {"size": options.size}, "towers": towers}
    write_json(options.output / "onnx.json", result)
    lines = table(result)
    print("\n".join(lines))
    if options.document is not None:
        fill(options.document, {"onnx": lines})


if __name__ == "__main__":
    main()

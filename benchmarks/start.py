"""Measure the seconds from the start of a command to its end, beside those of the imports that it needs.

    python -m benchmarks.start [--rounds 9]

Each number is the median over processes, which take turns. The files of all modules are in the system's cache, and
their bytecode is written, as in an installation.
`python -X importtime -m diffclip.cli …` shows which module takes the time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.about import parser_of


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with TemporaryDirectory() as folder:
        model, image = _inputs(Path(folder))
        command = [sys.executable, "-m", "diffclip.cli"]
        classify = [*command, "classify", image, "--labels", "cat, dog", "--model", model]
        imports = "import torch, torchvision; from open_clip.tokenizer import SimpleTokenizer"
        processes = {
            "import torch, torchvision and open_clip's tokenizer": [sys.executable, "-c", imports],
            "diffclip --help": [*command, "--help"],
            "diffclip classify, one image": classify,
            "diffclip classify, a wrong model": [*classify[:-1], "runs/nowhere"],
        }
        seconds: dict[str, list[float]] = {name: [] for name in processes}
        for _ in range(options.rounds + 1):  # the first one only fills the cache
            for name, words in processes.items():
                started = time.perf_counter()
                subprocess.run(words, capture_output=True, check=False)
                seconds[name].append(time.perf_counter() - started)
    base = statistics.median(next(iter(seconds.values()))[1:])
    for name, taken in seconds.items():
        middle = statistics.median(taken[1:])
        print(f"| {name} | {middle:.2f} | {middle / base:.2f} |")


def _inputs(folder: Path) -> tuple[str, str]:
    """Save a small DiffCLIP and an image."""
    from PIL import Image

    import diffclip

    towers = {"width": 64, "layers": 2, "heads": 4, "attention": "differential"}
    config = diffclip.CLIPConfig(
        embed_dim=64,
        vision=diffclip.VisionConfig(image_size=64, patch_size=16, **towers),
        text=diffclip.TextConfig(**towers),
    )
    diffclip.save_weights(diffclip.CLIP(config, seed=0), folder / "model")
    Image.new("RGB", (256, 256), "orange").save(folder / "image.jpg")
    return str(folder / "model"), str(folder / "image.jpg")


if __name__ == "__main__":
    main()

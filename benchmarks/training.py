"""Samples a second of a whole training step, forward, loss, backward and AdamW, by model and attention backend.

    python -m benchmarks.training [--device cpu|cuda] [--batch N] [--model-size ViT-B-16] [--compile]

The rows take turns in each round, and are given as ratios to CLIP with the same settings. The batch is made up.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from open_clip.loss import ClipLoss

from diffclip.attention import BACKENDS
from diffclip.config import variant_config
from diffclip.files import write_text
from diffclip.model import CLIP, create_model
from diffclip.training.optimiser import make_optimiser
from diffclip.training.recipe import read_recipe


class Step:
    """One model with its optimiser and a made-up batch; calling it takes one step."""

    def __init__(self, model: CLIP, batch: int, device: str, precision: str, compiled: bool) -> None:
        vision, text = model.config.vision, model.config.text
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(batch, 3, vision.image_size, vision.image_size, generator=generator).to(
            device
        )
        tokens = torch.randint(1, text.vocab_size - 2, (batch, text.context_length), generator=generator)
        tokens[:, text.context_length // 2] = text.vocab_size - 1
        self.tokens = tokens.to(device)
        self.model = model.to(device).train()
        self.forward = torch.compile(self.model) if compiled else self.model
        self.optimiser = make_optimiser(model, read_recipe("flickr8k_cpu"))
        self.criterion, self.device, self.precision = ClipLoss(), device, precision

    def __call__(self) -> None:
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
            out = self.forward(self.images, self.tokens)
            loss = self.criterion(out["image_features"], out["text_features"], out["logit_scale"])
        loss.backward()
        self.optimiser.step()
        self.optimiser.zero_grad()


def measure(step: Step, seconds: list[float], cuda: bool) -> int:
    """One timed step; returns its peak memory in bytes (0 on a CPU)."""
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    started = time.perf_counter()
    step()
    if cuda:
        torch.cuda.synchronize()
    seconds.append(time.perf_counter() - started)
    return torch.cuda.max_memory_allocated() if cuda else 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--model-size", default=None, help="default: ViT-B-16 on a GPU, the Flickr8k recipe's on a CPU"
    )
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cuda = options.device == "cuda"
    size = options.model_size or ("ViT-B-16" if cuda else None)
    batch = options.batch or (256 if cuda else 128)

    steps = {}
    for variant in ("CLIP", "DiffCLIP"):
        for backend in ("auto", *BACKENDS):
            if size:
                model = create_model(f"{variant}-{size}", attention_backend=backend, seed=0)
            else:
                architecture = read_recipe("flickr8k_cpu").architecture or {}
                model = CLIP(variant_config(variant, architecture), attention_backend=backend, seed=0)
            steps[f"{variant} {backend}"] = Step(
                model, batch, options.device, options.precision, options.compile
            )
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    memory: dict[str, int] = {}
    for _ in range(options.rounds + 2):  # two rounds warm up, and compile
        for name, step in steps.items():
            memory[name] = measure(step, seconds[name], cuda)
    rates = {name: batch / statistics.median(times[2:]) for name, times in seconds.items()}
    print(f"{'':20}{'samples/s':>11}{'/ CLIP':>8}{'peak GiB':>10}")
    for name, rate in rates.items():
        print(f"{name:20}{rate:11.1f}{rate / rates['CLIP auto']:8.2f}{memory[name] / 2**30:10.2f}")
    about = {
        "command": f"python -m benchmarks.training --device {options.device}"
        + (" --compile" * options.compile),
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
        "threads": options.threads,
        "torch": torch.__version__,
        "size": size or "flickr8k_cpu",
        "batch": batch,
        "precision": options.precision,
    }
    compiled = "_compiled" * options.compile
    file = options.output / f"training_{options.device}_{options.precision}_b{batch}{compiled}.json"
    rows = {name: {"samples_per_second": rates[name], "peak_bytes": memory[name]} for name in rates}
    write_text(file, json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    print(f"written to {file}")


if __name__ == "__main__":
    main()

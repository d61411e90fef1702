"""`diffclip bench`: measure attention on this machine, and recommend a backend."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffclip.cli.console import Device, print_table, say, show_progress
from diffclip.errors import InputError
from diffclip.sources.load import pick_device

if TYPE_CHECKING:
    import torch


def bench(
    device: Device = "auto",
    seconds: Annotated[float, typer.Option(min=0.1, help="Time to measure, approximately.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure every attention backend on this machine, and print in one line which one to use.

    On a GPU, also keep for `auto` whether the fused kernels are right and faster than torch's attention.

    Example: diffclip bench

    Example: diffclip bench --device cuda --json

    The shapes are those of ViT-B/16: 197 tokens with 12 query heads, and 77 causal tokens with 8. Takes under two
    minutes.
    """
    chosen_device = pick_device(device)
    if chosen_device.type not in ("cpu", "cuda"):
        raise InputError(f"device {device!r} cannot be measured: use cpu or cuda")
    if chosen_device.type == "cuda":
        import torch

        torch.cuda.set_device(chosen_device)
    from diffclip.benchmarking import attention

    verdicts = judge(chosen_device, seconds / 4) if chosen_device.type == "cuda" else []
    with show_progress("bench") as progress:
        result = attention.measure_backends(chosen_device, seconds, progress)
    if as_json:
        print(json.dumps(result, indent=1))
    else:
        _show(result)
    for line in verdicts:
        say(line)


def judge(device: torch.device, seconds: float) -> list[str]:
    """Compare the fused kernels with the formula and with sdpa in the types in use, about `seconds` for each type; keep
    the verdicts for `auto`, and return them in words."""
    import torch

    from diffclip.attention.fused import keep_verdict
    from diffclip.benchmarking.attention import judge_kernels

    lines, name = [], torch.cuda.get_device_name(device)
    for dtype in ("bfloat16", "float32"):
        why_not = judge_kernels(device, getattr(torch, dtype), seconds)
        file = keep_verdict(name, dtype, why_not)
        lines.append(
            f"auto takes {f'sdpa in {dtype}: {why_not}' if why_not else f'the fused kernels in {dtype}'}"
        )
    return [*lines, f"verdicts on {name} kept in {file}"]


def _show(result: dict[str, Any]) -> None:
    rows: list[Any] = []
    absent = {}
    for tower, measured in result["towers"].items():
        label = f"{tower}, N = {measured['shape']['tokens']}"
        plain = measured["rows"]["plain auto"].get("both", {}).get("median_ms")
        for name, row in measured["rows"].items():
            if "why" in row:
                absent[name] = row["why"]
                continue
            both = row["both"]
            times = (row["forward"]["median_ms"], both["median_ms"], (both["high_ms"] - both["low_ms"]) / 2)
            ratio = f"{both['median_ms'] / plain:.2f}" if plain else "–"
            rows.append((label, name, *(f"{time:.2f}" for time in times), ratio))
            label = ""
        rows.append(None)
    print_table(("tower", "attention", "forward\nms", "and backward\nms", "±", "to plain"), "llrrrr", rows)
    for name, why in absent.items():
        print(f"{name} did not run: {why}")
    print(result["advice"])

"""`diffclip bench`: attention measured on this machine, and which backend to use."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffclip.cli.progress import showing_progress
from diffclip.errors import InputError
from diffclip.model_source import pick_device

if TYPE_CHECKING:
    import torch

_MOST_ROUNDS = 500


def bench(
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto prefers CUDA.")] = "auto",
    seconds: Annotated[float, typer.Option(min=0.1, help="Time to spend on measuring, about.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the JSON object to this file.")] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="First find and keep the GPU kernels' best block sizes.")
    ] = False,
) -> None:
    """Measure every attention backend here, and say in one line which to use.

    Example: diffclip bench

    Example: diffclip bench --device cuda --tune --json

    The shapes are those of ViT-B/16: 197 tokens with 12 query heads, and 77 causal tokens with 8. Takes under two
    minutes.
    """
    from diffclip.files import check_writable, write_text

    if output is not None:
        check_writable(output)
    place = pick_device(device)
    if place.type not in ("cpu", "cuda"):
        raise InputError(f"device {device!r} cannot be measured: use cpu or cuda")
    if place.type == "cuda":
        import torch

        torch.cuda.set_device(place)
    if tune:
        _tune(place)
    found, rows = _measure(place, seconds)
    text = json.dumps(found, indent=1) + "\n"
    if output is not None:
        write_text(output, text)
    if as_json:
        print(text, end="")
        return
    _show(rows)
    print(found["advice"])


def _measure(
    place: torch.device, seconds: float
) -> tuple[dict[str, Any], dict[str, dict[str, dict[str, Any]]]]:
    """The result for machines, and the rows of each tower."""
    from diffclip.attention import BACKENDS
    from diffclip.benchmarking.advice import DTYPES, SHAPES, advise, automatic, result
    from diffclip.benchmarking.attention import measure
    from diffclip.benchmarking.operators import PLAIN, TIMM

    names = (PLAIN, TIMM, *(f"differential {name}" for name in ("auto", *BACKENDS)))
    shapes, dtype = SHAPES[place.type], DTYPES[place.type]
    rows = {}
    with showing_progress("bench", {"seconds": round(seconds)}) as progress:
        started, shown = time.perf_counter(), 0

        def tell() -> None:
            nonlocal shown
            passed = min(round(time.perf_counter() - started), round(seconds))
            progress("seconds", passed - shown, None)
            shown = passed

        for index, (tower, shape) in enumerate(shapes.items()):
            left = started + seconds - time.perf_counter()
            share = left / (len(shapes) - index)
            rows[tower] = measure(shape, place, dtype, _MOST_ROUNDS, share, names, tell=tell)
    auto = {tower: automatic(shape, place, dtype) for tower, shape in shapes.items()}
    return result(place, dtype, rows, advise(rows, auto)), rows


def _tune(place: torch.device) -> None:
    """Search the kernels' block sizes for both towers and keep them.

    Raises:
        InputError: there are no kernels for this device.
    """
    from diffclip.attention import fused
    from diffclip.benchmarking.advice import DTYPES, SHAPES
    from diffclip.benchmarking.operators import make_inputs

    if place.type != "cuda":
        raise InputError("--tune has nothing to tune on a CPU: the fused kernels run on a GPU, leave it out")
    with showing_progress("tune", {"towers": len(SHAPES["cuda"])}) as progress:
        for shape in SHAPES["cuda"].values():
            inputs = make_inputs(shape, place, DTYPES["cuda"], seed=0)
            why = fused.unfusable(inputs.q, inputs.v)
            if why is not None:
                raise InputError(f"--tune has nothing to tune: {why}, leave it out")
            from diffclip.attention.kernels import tuning
            from diffclip.attention.kernels.plan import problem_of

            problem = problem_of(inputs.q, inputs.v, shape.causal)
            plan = tuning.search(problem, inputs.q, inputs.v)
            if plan is None:
                raise InputError("--tune found no block sizes: no candidate runs on this GPU, leave it out")
            tuning.keep(problem, plan, tuning.plan_file(place))
            progress("towers", 1, None)
    typer.echo(f"block sizes kept in {tuning.plan_file(place)}", err=True)


def _show(rows: dict[str, dict[str, dict[str, Any]]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from diffclip.benchmarking.advice import SHAPES

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("tower")
    table.add_column("attention")
    for title in ("forward\nms", "and backward\nms", "±", "to plain"):
        table.add_column(title, justify="right")
    absent = {}
    for tower, of_tower in rows.items():
        plain = of_tower["plain auto"].get("both", {}).get("median_ms")
        label = f"{tower}, N = {SHAPES['cpu'][tower].tokens}"
        for name, row in of_tower.items():
            if "why" in row:
                absent[name] = row["why"]
                continue
            both = row["both"]
            spread = (both["high_ms"] - both["low_ms"]) / 2
            ratio = f"{both['median_ms'] / plain:.2f}" if plain else "–"
            times = (f"{row['forward']['median_ms']:.2f}", f"{both['median_ms']:.2f}", f"{spread:.2f}")
            table.add_row(label, name, *times, ratio)
            label = ""
        table.add_section()
    console = Console()
    console.print(table)
    for name, why in absent.items():
        console.print(f"{name} did not run: {why}", style="dim", highlight=False, markup=False)

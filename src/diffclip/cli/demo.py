"""`diffclip demo`: train, evaluate and report on the built-in scenes, in minutes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from diffclip.cli.console import show_progress
from diffclip.errors import StoppedError, require_group, require_report


@contextmanager
def explain_stops(folder: Path) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into a `StoppedError` that says how to continue; finished parts are in `folder`."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    print(f"{folder}: loading PyTorch; parts that are finished are not run again", flush=True)
    try:
        yield
    except (StoppedError, KeyboardInterrupt) as error:
        raise StoppedError(f"{folder}: stopped, the state is saved: the same command goes on") from error
    finally:
        signal.signal(signal.SIGTERM, before)


def demo(
    folder: Annotated[Path, typer.Option(help="Folder for scenes, runs and page.")] = Path("runs/demo"),
    seeds: Annotated[
        int, typer.Option(min=1, help="Training seeds per model; differences are tested from two seeds on.")
    ] = 1,
) -> None:
    """Draw scenes, train CLIP and DiffCLIP on them, evaluate both, and write a page.

    Example: diffclip demo --folder runs/demo

    With --plugin mine.py, the models that the plugin registers are trained and shown beside them.

    A second call reuses finished parts. One seed takes five to seven minutes on 2 CPU cores.
    """
    require_group("train", "lightning")
    require_report()
    with explain_stops(folder):
        from diffclip.cli.evaluate_table import show_records
        from diffclip.demo import run_demo

        page, records = run_demo(folder, print, show_progress, seeds)
    show_records(records, headlines_only=True)
    print(f"The page: {page}")

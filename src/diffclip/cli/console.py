"""Parts that commands share: options, tables, progress bars, messages about skipped files, and reading images."""

from __future__ import annotations

import functools
import inspect
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffclip.errors import Fault, InputError, sample_fault
from diffclip.files import printable

if TYPE_CHECKING:
    from PIL import Image
    from rich.console import Console, RenderableType

    from diffclip.data.workers import Progress

_NAMED = 5
_SECONDS_A_LINE = 15.0

_Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        help="FILE.py or a module that registers attentions, tasks or model sources (docs/plugin.md).",
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto prefers CUDA.")]
ModelName = Annotated[str | None, typer.Option(help="Name of the model, if a published file fits several.")]
Processes = Annotated[int | None, typer.Option(help="Processes; default: one per core.", min=1)]
Changes = Annotated[
    list[str] | None, typer.Argument(help="Changes to the recipe or spec.", metavar="KEY=VALUE")
]


def with_plugins(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option --plugin, and load the plugins before it runs."""

    @functools.wraps(command)
    def run(*words: Any, plugin: list[str] | None = None, **options: Any) -> None:
        from diffclip.plugins import load_plugin

        for source in plugin or ():
            load_plugin(source)
        command(*words, **options)

    option = inspect.Parameter("plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_Plugins)
    parameters = [*inspect.signature(command, eval_str=True).parameters.values(), option]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def table_console() -> Console:
    """Make a console as wide as the terminal; 100 columns in a pipe unless `COLUMNS` says otherwise."""
    from rich.console import Console

    return Console(width=shutil.get_terminal_size((100, 24)).columns)


def print_table(titles: Sequence[str], sides: str, rows: Iterable[Sequence[RenderableType] | None]) -> None:
    """Print `rows` without interpreting markup; a row that is None draws a line. `sides` has the alignment of each
    column, "l" or "r"."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title, side in zip(titles, sides, strict=True):
        table.add_column(title, justify="right" if side == "r" else "left", overflow="fold")
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    table_console().print(table)


def say(line: str) -> None:
    """Print a line on stderr at once."""
    print(line, file=sys.stderr, flush=True)


def say_loading(sources: Iterable[str]) -> None:
    """Tell a person at a terminal that PyTorch and models are loaded, which takes seconds."""
    if sys.stderr.isatty():
        say(f"diffclip: loading PyTorch and {', '.join(map(printable, sources))}")


def say_skipped(items: str, faults: Sequence[Fault]) -> None:
    """Print on stderr that `items` were skipped, with the first few `faults`. Print nothing if there is no fault."""
    details = "; ".join(printable(f"{fault.name}: {fault.reason}") for fault in faults[:_NAMED])
    suffix = f"; and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
    if faults:
        say(f"diffclip: skipped {items}: {details}{suffix}")


def read_images(
    files: Sequence[Path], required: Sequence[Path], progress: Progress, faults: list[Fault]
) -> Iterator[tuple[Path, Image.Image]]:
    """Yield each readable file with its RGB image, and add the other files to `faults`. An unreadable file in
    `required`, or no readable file at all, raises `InputError`."""
    from diffclip.data.images import read_image

    for file in files:
        try:
            image = read_image(file)
        except InputError as error:
            if file in required:
                raise
            faults.append(sample_fault(str(file), error))
        else:
            yield file, image
        progress("images", 1, len(files))
    if len(faults) == len(files):
        rest = f"; the other {len(faults) - 1} cannot be read either" if len(faults) > 1 else ""
        raise InputError(f"{printable(str(faults[0]))}{rest}")


@contextmanager
def show_progress(title: str) -> Iterator[Progress]:
    """Yield a callback that shows a bar with `title`, the rate and the time left for each kind of item (without a
    terminal: lines) until the block ends."""
    if not sys.stderr.isatty():
        yield _make_line_printer(title)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        ProgressColumn,
        Task,
        TaskID,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars

    class RateColumn(ProgressColumn):
        def render(self, task: Task) -> str:
            rate = task.finished_speed or task.speed
            return _format_rate(rate) if rate else ""

    columns = (
        TaskProgressColumn(),
        RateColumn(),
        TimeRemainingColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.description}", markup=False),
    )
    bars = Bars(*columns, console=Console(stderr=True), transient=True)
    tasks: dict[str, TaskID] = {}

    def advance(kind: str, count: int, total: int | None) -> None:
        if kind not in tasks:
            tasks[kind] = bars.add_task(f"{kind}: {title}", total=total)
        bars.advance(tasks[kind], count)

    with bars:
        yield advance


def _format_rate(rate: float) -> str:
    return f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.0f} s each"


def _make_line_printer(title: str) -> Progress:
    """Return a callback that prints a line every 15 seconds."""
    called = printed = time.monotonic()
    counts: dict[str, int] = {}
    since: dict[str, float] = {}

    def advance(kind: str, count: int, total: int | None) -> None:
        nonlocal called, printed
        counts[kind] = counts.get(kind, 0) + count
        now = time.monotonic()
        since.setdefault(kind, called)
        called = now
        if total and counts[kind] < total and now - printed > _SECONDS_A_LINE:
            printed = now
            share, rate = 100 * counts[kind] / total, counts[kind] / (now - since[kind])
            remaining = (total - counts[kind]) / rate
            say(f"{share:3.0f} %, {_format_rate(rate)}, {remaining:.0f} s left: {kind}: {title}")

    return advance

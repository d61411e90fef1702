"""Tables on the terminal, images that a user names, and skipped files in one line."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from diffclip.errors import Fault, InputError, sample_fault
from diffclip.files import printable

if TYPE_CHECKING:
    from PIL import Image
    from rich.console import Console, RenderableType

    from diffclip.data.workers import Progress

_NAMED = 5


def table_console() -> Console:
    """Make a console as wide as the terminal; 100 columns in a pipe unless `COLUMNS` says otherwise."""
    from rich.console import Console

    return Console(width=shutil.get_terminal_size((100, 24)).columns)


def print_table(titles: Sequence[str], sides: str, rows: Iterable[Sequence[RenderableType] | None]) -> None:
    """Print `rows` as they are, without markup; a row None draws a line.

    Args:
        titles: of the columns.
        sides: the alignment of each column, "l" or "r".
    """
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


def say_skipped(what: str, faults: Sequence[Fault]) -> None:
    """Say on stderr that `what` was skipped, and name the first few `faults`; nothing where there is none."""
    if not faults:
        return
    named = "; ".join(printable(f"{fault.name}: {fault.reason}") for fault in faults[:_NAMED])
    more = f"; and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
    print(f"diffclip: skipped {what}: {named}{more}", file=sys.stderr)


def none_readable(faults: Sequence[Fault]) -> InputError:
    """The error for files of which none can be read; it names the first."""
    others = len(faults) - 1
    more = f"; the other {others} cannot be read either" if others else ""
    return InputError(f"{printable(str(faults[0]))}{more}")


def read_images(
    files: Sequence[Path], named: Sequence[Path], progress: Progress, faults: list[Fault]
) -> Iterator[tuple[Path, Image.Image]]:
    """Yield each of `files` that can be read with its image, RGB; add the others to `faults`.

    Raises:
        InputError: one of the files in `named`, or all others, cannot be read.
    """
    from diffclip.data.images import read_image

    given = set(named)
    for file in files:
        try:
            image = read_image(file)
        except InputError as error:
            if file in given:
                raise
            faults.append(sample_fault(str(file), error))
        else:
            yield file, image
        progress("images", 1, None)
    if len(faults) == len(files):
        raise none_readable(faults)

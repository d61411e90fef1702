"""The console that tables are printed on."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def table_console() -> Console:
    """Make a console as wide as the terminal; 100 columns in a pipe unless `COLUMNS` says otherwise."""
    from rich.console import Console

    return Console(width=shutil.get_terminal_size((100, 24)).columns)

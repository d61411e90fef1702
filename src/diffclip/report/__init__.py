"""Reports from result records and run folders: a page, Markdown, figures, and the paper's tables.

`frame` reads the records, `compare` tests, `tables`, `figures` and `paper` present, `page` writes the files.
"""

from __future__ import annotations

import shlex
from pathlib import Path


def report_run(run: str | Path) -> Path:
    """Write `report.html` about one run into its folder, also during training, and return its path."""
    from diffclip.errors import require_group

    require_group("report", "matplotlib", "pandas", "jinja2", "scipy", "statsmodels")
    from diffclip.report.page import write_report

    page = Path(run) / "report.html"
    return write_report([run], page, command=shlex.join(["diffclip", "report", str(run)]))

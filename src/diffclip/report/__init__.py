"""Run folders and evaluation records turned into tables, figures and one HTML page.

`runs` and `sources` read, `series` and `compare` do the arithmetic, `curves`, `lambdas`, `correlations`, `bars`,
`six_tasks`, `out_of_domain`, `radar`, `focus_charts`, `pictures` and `attention` draw, `tables`, `paper_tables`,
`focus_tables`, `verdict`, `appendix_c` and `scoreboard` put it into words, `page`, `markdown` and `latex` write, and
`save` keeps what is worth committing.
"""

from __future__ import annotations

from pathlib import Path


def report_run(run: str | Path) -> Path:
    """Write `report.html` about one run into its folder, and return its path.

    Raises:
        InputError: matplotlib is missing, the run cannot be read, or its folder cannot be written.
    """
    from diffclip.errors import require_group

    require_group("train", "matplotlib")
    from diffclip.report.page import write_report
    from diffclip.report.runs import read_run

    found = read_run(run)
    command = f"diffclip report {found.folder} --output {found.folder / 'report.html'}"
    return write_report(found.folder / "report.html", [found], [], f"Run {found.name}", command=command)

"""Write what the experiments' pages say about results: verdicts.csv, figures, and README.md below its line.

python -m experiments.pages [NAME ...]

The text above the line is written by hand: the question, the protocol, and what was found. A folder without results, or
whose README.md has no such line, is left alone.
"""

import sys
from pathlib import Path

from PIL import Image

from diffclip.evaluation.records import TABLE_FILE
from diffclip.evaluation.verdicts import write_verdicts
from diffclip.files import write_text
from diffclip.report.frame import read_results
from diffclip.report.page import build_report, write_markdown
from experiments.needle_converged import needle
from experiments.seed_rows import read_rows

LINE = "<!-- make experiments writes the rest -->"


def write_page(folder: Path) -> None:
    """Write the results of the experiment in `folder`."""
    page = folder / "README.md"
    head, line, _ = page.read_text("utf-8").partition(LINE)
    if not line:
        return
    results = read_results([folder])
    if results.family is not None:
        write_verdicts(folder, results.verdicts, results.family)
    body = folder / "results.md"
    for file in write_markdown(body, build_report(results, [folder], title=folder.name), folder=folder):
        if file.suffix == ".png":  # a third of the bytes
            Image.open(file).convert("RGB").quantize(48).save(file, optimize=True)
    text = body.read_text("utf-8").partition("\n")[2]  # the title is in the head
    body.unlink()
    write_text(page, f"{head}{LINE}\n{text}")


if __name__ == "__main__":
    tables = sorted(Path(__file__).parent.glob(f"*/{TABLE_FILE}"))
    for folder in (table.parent for table in tables):
        if folder.name in sys.argv[1:] or not sys.argv[1:]:
            write_page(folder)
    if needle.RUNS.parent.name in sys.argv[1:] or not sys.argv[1:]:
        needle.write_page(read_rows(needle.RUNS))

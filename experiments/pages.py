"""Write what the experiments' pages say about results: verdicts.csv, figures, and README.md below its line.

python -m experiments.pages [NAME ...]

The text above the line is written by hand: the question, the protocol, and what was found. A folder without results is
left alone.
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
from experiments.study_e import multiplier

LINE = "<!-- make experiments writes the rest -->"
MORE = {"needle_converged": needle.every_length, "study_e": multiplier.multipliers}
"""By experiment what its page has beyond the report."""


def write_page(folder: Path) -> None:
    """Write the results of the experiment in `folder`."""
    page = folder / "README.md"
    head = page.read_text("utf-8").partition(LINE)[0]
    results = read_results([folder])
    write_verdicts(folder, results.verdicts)
    body = folder / "results.md"
    for file in write_markdown(body, build_report(results, [folder], title=folder.name), folder=folder):
        if file.suffix == ".png":  # a third of the bytes
            Image.open(file).convert("RGB").quantize(48).save(file, optimize=True)
    text = body.read_text("utf-8").partition("\n")[2]  # the title is in the head
    body.unlink()
    more = f"\n{MORE[folder.name]()}" if folder.name in MORE else ""
    write_text(page, f"{head}{LINE}\n{text}{more}")


if __name__ == "__main__":
    for table in sorted(Path(__file__).parent.glob(f"*/{TABLE_FILE}")):
        if table.parent.name in sys.argv[1:] or not sys.argv[1:]:
            write_page(table.parent)

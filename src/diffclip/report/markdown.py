"""A section of a Markdown file made from results: verdict, figures and tables between two comments."""

from __future__ import annotations

import os
import re
from pathlib import Path

from diffclip.errors import InputError
from diffclip.files import write_text
from diffclip.report.charts import save_chart
from diffclip.report.figures import all_charts, result_charts
from diffclip.report.focus_charts import focus_charts
from diffclip.report.focus_section import focus_markdown
from diffclip.report.origin import limits, origin_table
from diffclip.report.paper_tables import paper_sheets
from diffclip.report.pope_section import notice, pope_markdown
from diffclip.report.series import Collection
from diffclip.report.sheet import sheet_markdown
from diffclip.report.six_tasks import is_broad
from diffclip.report.study_data import StudyData
from diffclip.report.study_section import study_charts, study_markdown
from diffclip.report.tables import result_tables, to_markdown
from diffclip.report.verdict import judge, spelled_out

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def write_section(
    file: str | Path,
    section: str,
    collection: Collection,
    figures: str | Path,
    command: str | None = None,
    paper: bool = False,
    study: StudyData | None = None,
) -> list[Path]:
    """Put the results between `<!-- begin SECTION -->` and `<!-- end SECTION -->` of `file`, or at its end.

    The rest of the file stays as it is, to the byte; a file that does not exist is made. Figures go to the
    folder `figures` as `SECTION_KIND.png` and `.svg` and are linked relatively. With `paper`, the paper's numbers
    stand beside these; with `study`, whose models the collection then is, its verdict and tables come first.

    Returns:
        What was written, the Markdown file last.

    Raises:
        InputError: a section name of other signs than letters, digits, - and _, markers that do not match, or
            a place that cannot be written.
    """
    file, figures = Path(file), Path(figures)
    if not _NAME.fullmatch(section):
        raise InputError(f"section name {section!r}: use letters, digits, - and _ only")
    try:
        before = file.read_bytes().decode() if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {file}: it is not a text file") from error
    start, end = _span(before, section, file)
    written, links = _figures(collection, section, file, figures, study)
    body = _body(collection, links, command, paper, study)
    after = replaced(before, start, end, f"{_begin(section)}\n{body}\n{_end(section)}")
    write_text(file, after)
    return [*written, file]


def replaced(text: str, start: int, end: int, content: str) -> str:
    """`text` with `content` from `start` to `end`; at the end of a text it begins a paragraph of its own."""
    if start < len(text) or not text:
        return text[:start] + content + (text[end:] or "\n")
    return text + "\n" * max(0, 2 - (len(text) - len(text.rstrip("\n")))) + content + "\n"


def _begin(section: str) -> str:
    return f"<!-- begin {section} -->"


def _end(section: str) -> str:
    return f"<!-- end {section} -->"


def _span(text: str, section: str, file: Path) -> tuple[int, int]:
    """Where the section lies, its markers included; the end of the text if it is not there."""
    begins, ends = text.count(_begin(section)), text.count(_end(section))
    if begins == ends == 0:
        return len(text), len(text)
    start, end = text.find(_begin(section)), text.find(_end(section))
    if begins != 1 or ends != 1 or end < start:
        raise InputError(f"{file}: section {section!r} needs one begin and one end marker, in this order")
    return start, end + len(_end(section))


def _figures(
    collection: Collection, section: str, file: Path, folder: Path, study: StudyData | None
) -> tuple[list[Path], dict[str, str]]:
    """Save the charts; the Markdown of each, by its name."""
    written: list[Path] = []
    links = {}
    for chart in all_charts(collection, study):
        png, svg = save_chart(chart, folder, f"{section}_{chart.name}")
        written += [png, svg]
        png_link, svg_link = (Path(os.path.relpath(path, file.parent)).as_posix() for path in (png, svg))
        links[chart.name] = f"[![{chart.title}]({png_link})]({svg_link})\n\n*{chart.caption}*\n"
    return written, links


def _body(
    collection: Collection, links: dict[str, str], command: str | None, paper: bool, study: StudyData | None
) -> str:
    parts = study_markdown(study, links) if study else []
    verdict = judge(collection)
    if verdict:
        parts.append(f"**{verdict.headline}**\n")
        parts += ["".join(f"- {line}\n" for line in verdict.lines)] if verdict.lines else []
        parts.append(f"{verdict.caveat}\n")
        said = notice(collection)
        parts += [f"{said}\n"] if said else []
        # with several models the tables say the same more clearly
        if verdict.comparisons and not verdict.lines:
            parts.append("".join(f"- {spelled_out(one, collection)}\n" for one in verdict.comparisons))
    parts += [links.pop(chart.name) for chart in result_charts(collection)]
    single = [to_markdown(table) for table in result_tables(collection)]
    if paper or is_broad(collection):
        parts += [sheet_markdown(sheet) for sheet in paper_sheets(collection, paper)]
    if is_broad(collection):
        single = ["<details>\n<summary>Every set, every number</summary>\n", *single, "</details>\n"]
    parts += single
    parts += focus_markdown(collection, links)
    parts += pope_markdown(collection, paper)
    shown = {chart.name for own in focus_charts(collection).values() for chart in own}
    shown |= {chart.name for chart in study_charts(study)} if study else set()
    parts += [link for name, link in links.items() if name not in shown]
    if collection.runs:
        unknown = limits(collection, swept=bool(study and study.chosen))
        parts += [to_markdown(origin_table(collection)), *([f"{unknown}\n"] if unknown else [])]
    if command:
        parts.append(f"Made by:\n\n```bash\n{command}\n```\n")
    return "\n".join(parts)

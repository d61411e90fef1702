"""Tables laid out as the paper's: models down, sets across, a difference to CLIP beside each value."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field

from diffclip.report.compare import Outcome
from diffclip.report.metrics import signed


@dataclass(frozen=True)
class Cell:
    """A number as text, and where they are known its standard deviation and its difference to CLIP (fractions).

    `outcome` is None where a difference was not tested.
    """

    text: str = "–"
    sd: float | None = None
    gain: float | None = None
    outcome: Outcome | None = None

    @property
    def real(self) -> bool:
        return self.outcome in ("higher", "lower")


@dataclass(frozen=True)
class Line:
    """One row; `ours` is False for printed numbers of the paper."""

    label: str
    cells: list[Cell]
    ours: bool = True


@dataclass(frozen=True)
class Block:
    """Rows under a heading of their own, empty for none."""

    title: str
    lines: list[Line]


@dataclass(frozen=True)
class Span:
    """Columns that share a heading, empty for none."""

    title: str
    columns: list[str]


@dataclass(frozen=True)
class Sheet:
    """A table. `name` is the stem of its files, `notes` are whole sentences."""

    name: str
    title: str
    spans: list[Span]
    blocks: list[Block]
    notes: list[str] = field(default_factory=list)
    first: str = "model"

    @property
    def columns(self) -> list[str]:
        return [column for span in self.spans for column in span.columns]


def stem_of(dataset: str) -> str:
    """A set's name as part of a file's name and of a LaTeX label."""
    return re.sub(r"[^a-z0-9]+", "_", dataset.lower()).strip("_") or "set"


def sheet_markdown(sheet: Sheet) -> str:
    """The sheet as GitHub's Markdown: a heading of several columns becomes part of each."""
    heads = [
        f"{span.title}: {column}" if span.title else column for span in sheet.spans for column in span.columns
    ]
    lines = [f"**{_escaped(sheet.title)}**", ""]
    lines.append("| " + " | ".join(map(_escaped, [sheet.first, *heads])) + " |")
    lines.append("| --- |" + " ---: |" * len(heads))
    for block in sheet.blocks:
        if block.title:
            lines.append(f"| **{_escaped(block.title)}** |" + " |" * len(heads))
        for line in block.lines:
            label = _escaped(line.label) if line.ours else f"*{_escaped(line.label)}*"
            lines.append("| " + " | ".join([label, *map(_markdown_cell, line.cells)]) + " |")
    return "\n".join([*lines, "", " ".join(sheet.notes), ""])


def sheet_html(sheet: Sheet) -> str:
    """The sheet as an HTML figure that scrolls sideways where it is too wide."""
    spans = "".join(
        f"<th scope=colgroup colspan={len(span.columns)}>{html.escape(span.title)}</th>"
        for span in sheet.spans
    )
    above = f"<tr class=spans><td></td>{spans}</tr>" if any(span.title for span in sheet.spans) else ""
    heads = "".join(f"<th scope=col>{html.escape(column)}</th>" for column in [sheet.first, *sheet.columns])
    body = []
    for block in sheet.blocks:
        if block.title:
            rest = f"<td colspan={len(sheet.columns)}></td>" if sheet.columns else ""
            body.append(f'<tr class="block"><th scope=rowgroup>{html.escape(block.title)}</th>{rest}</tr>')
        for line in block.lines:
            cells = "".join(f"<td>{_html_cell(cell)}</td>" for cell in line.cells)
            kind = "one" if line.ours else "paper"
            body.append(f'<tr class="{kind}"><th scope=row>{html.escape(line.label)}</th>{cells}</tr>')
    return (
        f'<figure class="table"><figcaption class="title">{html.escape(sheet.title)}</figcaption>'
        f'<div class="scroll"><table class="numbers sheet"><thead>{above}<tr>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
        f"<figcaption>{html.escape(' '.join(sheet.notes))}</figcaption></figure>"
    )


def spread_text(sd: float) -> str:
    """A standard deviation in points, as the paper writes it."""
    return f"{100 * sd:.1f}"


def _markdown_cell(cell: Cell) -> str:
    text = _escaped(cell.text) + (f" ± {spread_text(cell.sd)}" if cell.sd is not None else "")
    if cell.gain is None:
        return text
    gain = signed(cell.gain)
    return f"{text} (**{gain}**)" if cell.real else f"{text} ({gain})"


def _html_cell(cell: Cell) -> str:
    text = html.escape(cell.text) + (f" ± {spread_text(cell.sd)}" if cell.sd is not None else "")
    if cell.gain is None:
        return text
    kind = f' class="{cell.outcome}"' if cell.outcome else ""
    return f"{text} <span{kind}>{signed(cell.gain)}</span>"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")

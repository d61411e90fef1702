"""Sheets as LaTeX tables: booktabs, nothing else to load."""

from __future__ import annotations

import re

from diffclip.report.metrics import signed
from diffclip.report.sheet import Cell, Sheet, spread_text

# signs that mean something to LaTeX, and those outside ASCII that our texts use
_SIGNS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # at the start of a row it would be an argument of the \\ before it
    "]": "{]}",
    "–": "--",
    "−": "$-$",
    "±": r"$\pm$",
    "→": r"$\rightarrow$",
    "·": r"$\cdot$",
    "×": r"$\times$",
    "²": r"\textsuperscript{2}",
    "λ": r"$\lambda$",
    "‖": r"$\Vert$",
    "“": "``",
    "”": "''",
    "’": "'",
    "…": r"\dots{}",
    "\u00a0": "~",
    "\n": " ",
}
_SIGN = re.compile("|".join(map(re.escape, _SIGNS)))


def escaped(text: str) -> str:
    """Any text as LaTeX that prints it; signs outside ASCII without a name here become "?"."""
    named = _SIGN.sub(lambda found: _SIGNS[found.group()], text)
    return named.encode("ascii", "replace").decode()


def sheet_latex(sheet: Sheet) -> str:
    """The sheet as a `table*` of booktabs; differences that are real are in bold, the paper's rows in italics.

    The preamble needs `\\usepackage{booktabs}` and `\\usepackage{graphicx}` (a wide table is made as narrow as the
    page).
    """
    count = len(sheet.columns)
    lines = [
        r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
        r"\begin{table*}",
        r"  \centering",
        rf"  \caption{{{escaped(sheet.title)}}}",
        rf"  \label{{tab:{sheet.name.replace('_', '-')}}}",
        r"  \resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        rf"  \begin{{tabular}}{{@{{}}l{'r' * count}@{{}}}}",
        r"    \toprule",
    ]
    if any(span.title for span in sheet.spans):
        lines += _spans(sheet)
    lines.append(_row([escaped(text) for text in (sheet.first, *sheet.columns)]))
    for block in sheet.blocks:
        lines.append(r"    \midrule")
        if block.title:
            lines.append(
                rf"    \multicolumn{{{count + 1}}}{{@{{}}l}}{{\textit{{{escaped(block.title)}}}}} \\"
            )
        for line in block.lines:
            label = escaped(line.label) if line.ours else rf"\textit{{{escaped(line.label)}}}"
            lines.append(_row([label, *map(_cell, line.cells)]))
    lines += [
        r"    \bottomrule",
        r"  \end{tabular}%",
        r"  }",
        "",
        rf"  \smallskip\parbox{{\textwidth}}{{\footnotesize {escaped(' '.join(sheet.notes))}}}",
        r"\end{table*}",
        "",
    ]
    return "\n".join(lines)


def _spans(sheet: Sheet) -> list[str]:
    """The headings of several columns, and the rules beneath those that have one."""
    cells, rules, column = [""], [], 2
    for span in sheet.spans:
        last = column + len(span.columns) - 1
        cells.append(rf"\multicolumn{{{len(span.columns)}}}{{c}}{{{escaped(span.title)}}}")
        if span.title:
            rules.append(rf"\cmidrule(lr){{{column}-{last}}}")
        column = last + 1
    return [_row(cells), "    " + " ".join(rules)]


def _row(cells: list[str]) -> str:
    return "    " + " & ".join(cells) + r" \\"


def _cell(cell: Cell) -> str:
    text = escaped(cell.text) + (rf" $\pm$ {spread_text(cell.sd)}" if cell.sd is not None else "")
    if cell.gain is None:
        return text
    gain = escaped(signed(cell.gain))
    # the minus is set by mathematics, which \textbf does not reach
    bold = rf"\textbf{{\boldmath {gain}}}"
    return f"{text} ({bold if cell.real else gain})"

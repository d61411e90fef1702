import re

import pytest
from suite_records import suite_records

from diffclip.report.latex import escaped, sheet_latex
from diffclip.report.paper_tables import paper_sheets
from diffclip.report.series import collect
from diffclip.report.sheet import Block, Cell, Line, Sheet, Span, sheet_html, sheet_markdown

SHEETS = paper_sheets(
    collect([], suite_records({"CLIP": 0.0, "DiffCLIP": 0.03}, draws=(0, 1, 2))), paper=True
)
TRICKY = Sheet(
    "tricky_name",
    r"50 % of A & B_1, #3 {x} \cmd ~ ^",
    [Span("a & b", ["c_1", "d"]), Span("", ["e"])],
    [
        Block(
            "100 %",
            [
                Line(
                    "m_1 | n",
                    [Cell("[1, 2]"), Cell("1.0", sd=0.012), Cell("−2", gain=-0.02, outcome="lower")],
                )
            ],
        )
    ],
    ["λ → 0 · ± “x” … ü"],
)


def columns_of(row):
    """How many columns a row of a table fills."""
    cells = re.split(r"(?<!\\)&", row)
    return sum(
        int(found[1]) if (found := re.search(r"\\multicolumn\{(\d+)\}", cell)) else 1 for cell in cells
    )


@pytest.mark.parametrize("sheet", [*SHEETS, TRICKY], ids=lambda sheet: sheet.name)
def test_a_table_can_be_compiled(sheet):
    text = sheet_latex(sheet)
    plain = re.sub(r"\\[{}]", "", text)
    depth = 0
    for sign in plain:
        depth += (sign == "{") - (sign == "}")
        assert depth >= 0
    assert depth == 0
    assert text.isascii()
    assert len(re.findall(r"(?<!\\)\$", text)) % 2 == 0
    assert re.findall(r"\\begin\{(\w+\*?)\}", text) == ["table*", "tabular"]
    assert re.findall(r"\\end\{(\w+\*?)\}", text) == ["tabular", "table*"]
    (shape,) = re.findall(r"\\begin\{tabular\}\{@\{\}(\w+)@\{\}\}", text)
    inside = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    rows = [line for line in inside.splitlines() if line.endswith(r"\\")]
    assert len(rows) >= 2
    assert {columns_of(row) for row in rows} == {len(shape)}
    # a percent sign that is not escaped would hide the rest of its line
    for line in text.splitlines():
        found = re.search(r"(?<!\\)%", line)
        assert not found or found.start() in (0, len(line) - 1)


def test_signs_of_latex_are_escaped():
    assert escaped("50 % & a_b {c} #1 $x") == r"50 \% \& a\_b \{c\} \#1 \$x"
    assert escaped("\\") == r"\textbackslash{}"
    assert escaped("1.0 ± 0.1, −2 – λ") == r"1.0 $\pm$ 0.1, $-$2 -- $\lambda$"
    assert escaped("ü") == "?"


def test_only_real_differences_are_bold():
    def cell_of(outcome):
        line = Line("m", [Cell("60.0", gain=0.021, outcome=outcome)])
        return Sheet("s", "t", [Span("", ["c"])], [Block("", [line])])

    for outcome, real in (("higher", True), ("lower", True), ("unclear", False), (None, False)):
        sheet = cell_of(outcome)
        assert (r"\textbf{" in sheet_latex(sheet)) == real
        assert ("(**+2.1**)" in sheet_markdown(sheet)) == real
        assert "+2.1" in sheet_latex(sheet)
        assert "+2.1" in sheet_markdown(sheet)


def test_standard_deviations_are_set_with_pm():
    (sheet,) = [sheet for sheet in SHEETS if sheet.name == "few_shot_spread"]
    assert r"90.3 $\pm$ 0.4" in sheet_latex(sheet)
    assert "90.3 ± 0.4" in sheet_markdown(sheet)
    assert "90.3 ± 0.4" in sheet_html(sheet)


@pytest.mark.parametrize("sheet", [*SHEETS, TRICKY], ids=lambda sheet: sheet.name)
def test_markdown_rows_have_equal_numbers_of_cells(sheet):
    rows = [line for line in sheet_markdown(sheet).splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


def test_html_escapes_and_spans():
    text = sheet_html(TRICKY)
    assert "a &amp; b" in text
    assert "colspan=2" in text
    assert '<span class="lower">−2.0</span>' in text

"""`diffclip report` at the command line."""

import in_process
import pytest
from made_records import make_run

from diffclip.errors import InputError
from diffclip.files import write_text


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Skip drawing: it takes most of the time, and tests/report draws every figure."""
    monkeypatch.setattr("diffclip.report.page.png_of", lambda figure, dpi: b"")
    monkeypatch.setattr(
        "diffclip.report.page.write_figure", lambda file, figure: write_text(file, "") or file
    )


def call(*arguments: object) -> str:
    return in_process.call("report", *arguments)[0]


@pytest.fixture
def runs(tmp_path):
    for model, level in (("CLIP", 0.2), ("DiffCLIP", 0.6)):
        for seed in (0, 1):
            make_run(tmp_path / "runs" / f"{model}-s{seed}", model, seed, level=level)
    return tmp_path / "runs"


def test_pages_have_a_title_and_the_command_and_other_endings_are_refused(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = "runs/CLIP-s0/results.jsonl"
    for options, words in (
        (("--output", file), "give a name that ends with .html"),
        (("--markdown", "runs/CLIP-s0/results.stamps.json"), "give a name that ends with .md"),
    ):
        with pytest.raises(InputError, match=words):
            call(file, *options)
    assert call("runs", "--output", "report.html", "--title", "Demo") == "wrote report.html\n"
    page = (tmp_path / "report.html").read_text()
    assert "<h1>Demo</h1>" in page
    assert "diffclip report runs --output report.html" in page
    assert call("runs", "--markdown", "demo.md") == "wrote demo.md\nwrote figures/demo_forest.png\n"
    assert str(tmp_path) not in (tmp_path / "demo.md").read_text()


def test_figures_and_tables_are_written_into_folders(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = call("runs", "--tables", "out/tables", "--figures", "out/figures").splitlines()
    assert {"wrote out/figures/forest.png", "wrote out/tables/comparison.tex"} <= set(printed)
    assert len(printed) == len(list((tmp_path / "out").glob("*/*")))
    assert "wrote out/figures/forest.pdf" in call("runs", "--figures", "out/figures", "--format", "pdf")
    assert call("runs") == "wrote report.html\n"
    call("runs", "--against", "DiffCLIP", "--markdown", "other.md")
    assert "CLIP against DiffCLIP" in (tmp_path / "other.md").read_text()
    assert call("runs/CLIP-s0") == "wrote runs/CLIP-s0/report.html\n"

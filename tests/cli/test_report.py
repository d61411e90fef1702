"""`diffclip report` at the command line."""

import in_process
import pytest
from run_folders import make_run

from diffclip.errors import InputError
from diffclip.evaluation.records import read_records, write_records
from diffclip.files import write_text


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Skip drawing: it takes most of the time, and tests/report draws every figure."""
    monkeypatch.setattr("diffclip.report.page.png_of", lambda figure, dpi: b"")
    monkeypatch.setattr("diffclip.report.page.write_png", lambda file, figure: write_text(file, "") or file)


def call(*arguments: object) -> str:
    return in_process.call("report", *arguments)[0]


@pytest.fixture
def runs(tmp_path):
    for model, level in (("CLIP", 0.2), ("DiffCLIP", 0.6)):
        for seed in (0, 1):
            make_run(tmp_path / "runs" / f"{model}-s{seed}", model, seed, level=level)
    return tmp_path / "runs"


def test_save_condenses_runs_to_results_that_can_be_reported(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = runs / "CLIP-s0" / "results.jsonl"
    (first, *_), saved = read_records(file), {("mechanics", "sink_ratio"), ("training", "lambda")}
    changes = [{"task": task, "metric": name, "layer": 1} for task, name in (*saved, ("mechanics", "other"))]
    layers = [first.model_copy(update=change) for change in changes]
    write_records(file, [*read_records(file), *layers, layers[0].model_copy(update={"head": 1})])
    assert call("runs", "--save", "saved/demo") == "wrote saved/demo\n"
    names = sorted(path.name for path in (tmp_path / "saved" / "demo").iterdir())
    assert names == ["curves.jsonl", "results.jsonl"]
    records = read_records(tmp_path / "saved" / "demo" / "results.jsonl")
    runs = {record.weights.removesuffix("/checkpoints/best") for record in records}
    assert runs == {f"{model}-s{seed}" for model in ("CLIP", "DiffCLIP") for seed in (0, 1)}
    layers = {(record.task, record.metric, record.head) for record in records if record.layer}
    assert layers == {(*measure, None) for measure in saved}
    file = "saved/demo/results.jsonl"
    for options, words in (
        ((file, "--output", file), "give a name that ends with .html"),
        ((file, "--markdown", "saved/demo/results.outcomes.npz"), "give a name that ends with .md"),
        (("saved/demo", "--save", "saved/demo"), "is an input, which would be lost"),
        (("runs", "--save", "runs"), "--save runs lies in one of the inputs"),
        (("runs", "--save", "runs/saved"), "lies in one of the inputs"),
    ):
        with pytest.raises(InputError, match=words):
            call(*options)
    call("saved/demo", "--save", "saved/again")
    curves = [(tmp_path / "saved" / name / "curves.jsonl").read_text() for name in ("demo", "again")]
    assert curves[0] == curves[1]
    make_run(tmp_path / "other" / "CLIP-s0", "CLIP", 0, level=0.2)
    call("runs", "other", "--save", "saved/both")
    weights = {record.weights for record in read_records(tmp_path / "saved" / "both" / "results.jsonl")}
    assert {f"{folder}/CLIP-s0/checkpoints/best" for folder in ("runs", "other")} < weights
    assert call("saved/demo", "--output", "report.html", "--title", "Demo") == "wrote report.html\n"
    page = (tmp_path / "report.html").read_text()
    assert "<h1>Demo</h1>" in page
    assert "diffclip report saved/demo --output report.html" in page
    assert call("saved/demo", "--markdown", "demo.md") == "wrote demo.md\nwrote figures/demo_forest.png\n"
    assert str(tmp_path) not in (tmp_path / "demo.md").read_text()


def test_figures_and_tables_are_written_into_folders(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = call("runs", "--tables", "out/tables", "--figures", "out/figures", "--paper").splitlines()
    assert {"wrote out/figures/forest.png", "wrote out/tables/retrieval.tex"} <= set(printed)
    assert "(paper)" in (tmp_path / "out" / "tables" / "retrieval.md").read_text()
    assert len(printed) == len(list((tmp_path / "out").glob("*/*")))
    assert call("runs") == "wrote report.html\n"
    assert call("runs/CLIP-s0") == "wrote runs/CLIP-s0/report.html\n"

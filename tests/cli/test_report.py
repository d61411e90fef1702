import pytest
import typer
from run_folders import make_run
from typer.testing import CliRunner

from diffclip.cli.report import report
from diffclip.errors import InputError
from diffclip.evaluation.records import read_records

app = typer.Typer()
app.command()(report)


def call(*arguments: object) -> str:
    """stdout of `diffclip report`; what it raises is raised again."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception:
        raise result.exception
    return result.stdout


@pytest.fixture
def runs(tmp_path):
    for model, level in (("CLIP", 0.2), ("DiffCLIP", 0.6)):
        make_run(tmp_path / "runs" / model, model, level=level)
    return tmp_path / "runs"


def test_runs_are_condensed_and_reported_from_there(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("runs", "--save", "benchmarks/results/demo") == "wrote benchmarks/results/demo\n"
    assert (
        call("benchmarks/results/demo", "--output", "report.html", "--title", "Demo") == "wrote report.html\n"
    )
    page = (tmp_path / "report.html").read_text()
    assert "<h1>Demo</h1>" in page
    assert "DiffCLIP is better than CLIP" in page
    arguments = ("benchmarks/results/demo", "--markdown", "docs/results.md", "--section", "demo")
    printed = call(*arguments)
    assert printed.endswith("wrote docs/results.md\n")
    assert "wrote docs/figures/demo_metrics.png\n" in printed
    text = (tmp_path / "docs" / "results.md").read_text()
    assert f"diffclip report {' '.join(arguments)}\n" in text
    assert str(tmp_path) not in text


def test_a_results_file_alone_is_enough(runs, tmp_path):
    call(
        runs / "CLIP" / "results.jsonl",
        runs / "DiffCLIP" / "results.jsonl",
        "--output",
        tmp_path / "page.html",
    )
    assert "DiffCLIP is better than CLIP" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "nothing to write"),
        (("--markdown", "docs.md"), "go together"),
        (("--section", "demo", "--output", "x.html"), "go together"),
    ],
)
def test_options_that_do_not_fit_are_refused(runs, options, message):
    with pytest.raises(InputError, match=message):
        call(runs, *options)


def test_a_folder_with_nothing_to_report_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty holds neither a run"):
        call(tmp_path / "empty", "--output", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_results_files_are_kept_beside_the_runs(runs, tmp_path):
    results = runs / "CLIP" / "results.jsonl"
    more = tmp_path / "more.jsonl"
    more.write_text(results.read_text().replace("scenes", "other"))
    results.unlink()
    call(runs, more, "--save", tmp_path / "saved")
    saved = read_records(tmp_path / "saved" / "records.jsonl")
    assert [record.dataset for record in saved] == ["scenes"] * 3 + ["other"] * 3
    assert {record.weights for record in saved} == {"CLIP/checkpoints/best", "DiffCLIP/checkpoints/best"}


def test_figures_and_tables_go_into_folders(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = (
        "runs",
        "--output",
        "report.html",
        "--tables",
        "out/tables",
        "--figures",
        "out/figures",
        "--paper",
    )
    printed = call(*arguments).splitlines()
    assert printed[0] == "wrote report.html"
    names = {path.name for path in (tmp_path / "out" / "tables").iterdir()}
    assert {"six_tasks.md", "six_tasks.tex", "retrieval.md", "retrieval.tex"} == names
    figures = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert {"metrics.png", "metrics.svg", "training.png", "lambda.png"} <= figures
    assert len(printed) == 1 + len(names) + len(figures)
    assert "diffclip report runs --output report.html --paper" in (tmp_path / "report.html").read_text()
    assert r"\toprule" in (tmp_path / "out" / "tables" / "retrieval.tex").read_text()


def test_tables_or_figures_alone_are_enough(runs, tmp_path):
    call(runs, "--tables", tmp_path / "tables")
    assert (tmp_path / "tables" / "retrieval.md").read_text().startswith("**Zero-shot retrieval")
    call(runs, "--figures", tmp_path / "figures")
    assert (tmp_path / "figures" / "metrics.svg").is_file()


def test_figures_of_a_section_are_named_after_it(runs, tmp_path):
    place = ("--markdown", tmp_path / "results.md", "--section", "demo", "--figures", tmp_path / "pictures")
    call(runs, *place)
    assert {path.name.partition("_")[0] for path in (tmp_path / "pictures").iterdir()} == {"demo"}
    assert "pictures/demo_metrics.png" in (tmp_path / "results.md").read_text()


def test_a_place_that_cannot_be_written_is_named(runs, tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(InputError, match="taken"):
        call(runs, "--tables", tmp_path / "taken")


def test_records_without_a_record_are_nothing_to_report(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    for option in ("--output", "--tables"):
        with pytest.raises(InputError, match="nothing to report"):
            call(tmp_path / "empty.jsonl", option, tmp_path / "place")

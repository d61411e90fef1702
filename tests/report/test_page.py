"""Pages, Markdown files, figures and tables of results, and run folders read during and after training."""

import html
import json
import re
import time

import numpy as np
import pandas as pd
import pytest
import yaml
from made_records import made, make_run, results_from, write_study
from matplotlib.figure import Figure
from PIL import Image

from diffclip.cli.evaluate_table import show_records
from diffclip.errors import InputError
from diffclip.evaluation.records import load_records, read_records
from diffclip.evaluation.verdicts import write_verdicts
from diffclip.report.figures import forest_chart, pairs_chart, six_tasks_chart
from diffclip.report.frame import read_results, results_of
from diffclip.report.labels import p_text
from diffclip.report.page import (
    build_report,
    run_facts,
    write_charts,
    write_markdown,
    write_page,
    write_report,
    write_tables,
)
from diffclip.report.style import style, write_figure
from diffclip.report.tables import Table
from diffclip.training.run_folder import curve_of, read_run, run_folders

LEVELS = {"CLIP": 0.4, "DiffCLIP": 0.45, "DiffCLIP-dynamic": 0.4, "DiffCLIP-vision": 0.42}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("made") / "study", {**LEVELS, "DiffCLIP-no-norm": 0.3})


@pytest.fixture(scope="module")
def results(study):
    return read_results([study])


@pytest.fixture(scope="module")
def report(study, results):
    return build_report(results, [study])


@pytest.fixture
def undrawn(monkeypatch):
    """Skip the PNG files of a page, which take most of its time."""
    monkeypatch.setattr("diffclip.report.page.png_of", lambda figure, dpi: b"")
    monkeypatch.setattr("diffclip.report.page.write_figure", lambda file, figure: file)


def text_of(page) -> str:
    """The text of a page, without tags, style and images."""
    text = re.sub(r"<style>.*?</style>|src=\"data:[^\"]*\"", "", page.read_text("utf-8"), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def test_study_page_has_headline_forest_and_table_and_folds_the_rest(report, tmp_path):
    page = write_page(tmp_path / "page.html", report, command="diffclip report study")
    source, text = page.read_text("utf-8"), text_of(page)
    assert "DiffCLIP − CLIP on validation score, Flickr8k, the primary endpoint: +1." in text
    assert source.index("DiffCLIP − CLIP by measure") < source.index("<table") < source.index("<details")
    assert "http" not in re.sub(r"src=\"data:[^\"]*\"", "", source)
    folded = re.findall("<summary>(.*?)</summary>", html.unescape(source))
    sections = {
        "Arms and ablations",
        "Every declared comparison",
        "Training",
        "Every number",
        "How it was made",
    }
    assert sections < set(folded)
    assert 'class="short text better"' in source
    assert "diffclip report study" in text


@pytest.mark.usefixtures("undrawn")
def test_one_run_per_model_has_no_verdict_no_color_and_no_p(tmp_path):
    report = build_report(results_from(made(LEVELS, seeds=(0,))))
    page = write_page(tmp_path / "page.html", report)
    text = text_of(page)
    assert "One training run each: another seed or processor can turn this around." in text
    for word in ("better", "worse", "equivalent", "undecided", "verdict", " p "):
        assert word not in text.replace("Figures", "")
    assert not re.search(r'class="[^"]*(better|worse)', page.read_text("utf-8"))
    assert "Values by measure" in text  # also the intervals, and numbers that are no shares
    assert "shares in percent" in text
    for file in write_tables(tmp_path / "tables", report):
        assert "better" not in file.read_text("utf-8")


@pytest.mark.usefixtures("undrawn")
def test_a_page_in_every_form_has_one_p_and_one_verdict_for_each_comparison(
    study, results, report, tmp_path, monkeypatch, capsys
):
    """HTML, Markdown, LaTeX, the terminal and verdicts.csv of one study."""
    write_page(tmp_path / "page.html", report)
    write_markdown(tmp_path / "page.md", report)
    write_tables(tmp_path, report)
    write_verdicts(study, results.verdicts)
    stored = pd.read_csv(study / "verdicts.csv")
    found = {}
    tables = [report.table, *(table for section in report.sections for table in section.tables)]
    for table in tables:
        if "p" in table.frame:
            for cells in table.frame.to_dict("records"):
                arms = cells.get("arm − baseline") or f"{cells.get('model', 'DiffCLIP')} − CLIP"
                measure = cells.get("measure") or table.title.removeprefix("Arms: ")
                p = cells["p"].removesuffix(" (primary)")
                found.setdefault((arms, measure), set()).add((p, cells["verdict"], cells["difference"]))
    assert len(found) == len(stored)
    assert {len(told) for told in found.values()} == {1}
    told = {key: next(iter(values)) for key, values in found.items()}
    for row, (_, written) in zip(results.verdicts.to_dict("records"), stored.iterrows(), strict=True):
        p, verdict, _ = told[f"{row['arm']} − {row['against']}", row["label"]]
        assert p == p_text(written["p_corrected"])
        assert verdict.startswith(written["verdict"])
    for name in ("page.html", "page.md", "family.md", "family.tex"):
        text = html.unescape((tmp_path / name).read_text("utf-8"))
        assert all(p.strip("< ") in text and verdict in text for p, verdict, _ in told.values())
    monkeypatch.setenv("COLUMNS", "250")
    show_records(read_records(study / "results.jsonl"), headlines_only=True)
    loose = results_of(load_records(study)).verdicts
    printed = capsys.readouterr().out
    assert all(word in printed for word in set(loose["verdict"]))


def test_the_markdown_has_at_most_60_lines_and_png_beside_it(report, tmp_path):
    written = write_markdown(tmp_path / "docs" / "results" / "study.md", report, "diffclip report study")
    lines = written[0].read_text("utf-8").splitlines()
    assert len(lines) <= 80
    assert lines[0] == "# A made-up study"
    assert "![DiffCLIP − CLIP by measure](figures/study_forest.png)" in "\n".join(lines)
    assert any(line.startswith("| validation score, Flickr8k |") for line in lines)
    assert any(line.startswith("| DiffCLIP − CLIP |") and "| +0.100 % |" in line for line in lines)
    assert [path.name for path in written[1:]] == ["study_forest.png", "study_arms.png"]
    assert all(Image.open(path).format == "PNG" for path in written[1:])


def test_figures_are_written_as_png_and_tables_as_markdown_and_latex(report, tmp_path):
    names = {"forest", "arms", "six_tasks", "out_of_domain", "minimal_pairs", "training", "lambda"}
    assert {path.stem for path in write_charts(tmp_path / "figures", report)} == names
    files = write_tables(tmp_path, report)
    latex = (tmp_path / "comparison.tex").read_text("utf-8")
    assert r"\toprule" in latex
    assert r"95 \% interval" in latex
    assert "−" not in latex
    caption = Table("names", r"50% of A_1 & #2 \input{~/x^2}", pd.DataFrame({"a": ["b"]})).to_latex()
    assert Table("names", "", pd.DataFrame({"a|b": ["c\nd"]})).to_markdown().splitlines()[0::2] == [
        r"| a\|b |",
        "| c d |",
    ]
    assert r"\caption{50\% of A\_1 \& \#2 \textbackslash{}input\{\~{}/x\^{}2\}}" in caption
    assert {path.suffix for path in files} == {".md", ".tex"}
    assert "| DiffCLIP − CLIP |" in (tmp_path / "arms.md").read_text("utf-8")


def test_figures_for_papers_are_vectors_and_equal_each_time(tmp_path):
    for kind, head in (("svg", b"<?xml"), ("pdf", b"%PDF")):
        figures = [Figure((2, 2)), Figure((2, 2))]
        for name, figure in zip("ab", figures, strict=True):
            figure.subplots().plot([1, 2])
            write_figure(tmp_path / f"{name}.{kind}", figure)
        first, second = ((tmp_path / f"{name}.{kind}").read_bytes() for name in "ab")
        assert first.startswith(head)
        assert first == second


def test_images_have_true_colors(tmp_path):
    figure = Figure((2, 2))
    figure.subplots().imshow(np.linspace(0, 1, 4096).reshape(64, 64), cmap="inferno", interpolation="nearest")
    with Image.open(write_figure(tmp_path / "map.png", figure)) as image:
        assert len(image.convert("RGB").getcolors(1 << 16)) > 256


def test_charts_of_values_have_every_arm_and_those_of_differences_say_which_are_unfinished(tmp_path):
    names = ["CLIP@5e-4", "CLIP@1e-3", "DiffCLIP", "DiffCLIP@5e-4", "DiffCLIP@1e-3", "CLIP-gated", "other"]
    study = write_study(tmp_path / "study", dict.fromkeys(names[::-1], 0.4), seeds=(0, 1))
    spec = yaml.safe_load((study / "spec.yaml").read_text())
    spec["models"]["arms"] = {
        "DiffCLIP": {"change": {}},
        "CLIP": {"change": {}},
        "CLIP-gated": {"change": {"lr": 1e-3}},
    }
    spec["models"] |= {"lr": [5e-4, 1e-3], "seeds": [0, 1, 2]}
    spec["contrasts"] = [["DiffCLIP", "CLIP"], ["CLIP-gated", "CLIP@1e-3"]]
    spec["endpoints"]["secondary"] = []
    (study / "spec.yaml").write_text(yaml.safe_dump(spec))
    report = build_report(read_results([study]))
    values, arms = report.charts
    legend = [text.get_text() for text in values.figure.legends[0].get_texts()]
    assert sorted(legend) == sorted(names)
    assert legend[0].startswith("CLIP@")
    assert report.table.frame["model"].tolist() == [*legend, "chance"]
    assert [label.get_text() for label in values.figure.axes[0].get_yticklabels()] == [
        "validation score,\nFlickr8k"
    ]
    texts = [text.get_text() for text in arms.figure.axes[0].texts]
    assert texts[::2] == ["DiffCLIP − CLIP", "CLIP-gated − CLIP@1e-3"]
    assert all("unfinished" in text for text in texts[1::2])


@style()
def test_a_long_label_does_not_narrow_the_forest_plot():
    names = ("mine " * 20 + "CLIP", "mine " * 20 + "DiffCLIP")
    results = results_from(made(dict.fromkeys(names, 0.4)))
    forest = forest_chart(results, results.verdicts, "long")
    forest.figure.draw_without_rendering()
    assert forest.figure.axes[0].get_position().width > 0.9


@style()
def test_dollar_signs_in_names_are_no_formulas():
    results = results_from(made({"$x^{$ CLIP": 0.4, "$x^{$ DiffCLIP": 0.4}))
    for draw in (pairs_chart, six_tasks_chart):
        draw(results).figure.draw_without_rendering()  # a broken formula is an error here


def test_unfinished_run_has_a_report_page(tmp_path):
    run = make_run(tmp_path / "DiffCLIP-s0", evaluated=False)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 41, "lo')
    text = text_of(write_report([run], run / "report.html"))
    assert "Run DiffCLIP-s0: going" in text
    assert "Training" in text
    assert "step 40" in text


def about(run, **start):
    (run / "about.json").write_text(json.dumps({"starts": [{"time": 0.0, "step": 0, "steps": 40, **start}]}))


@pytest.mark.parametrize(
    ("start", "silent", "state"),
    [
        ({}, 0, "finished"),
        ({"steps": 80}, 3600, "stopped"),
        ({"steps": 80, "ended": {"step": 40, "how": "SIGTERM", "time": 1.0}}, 0, "stopped"),
        ({"steps": 80}, 0, "going"),
    ],
)
def test_run_state_is_finished_stopped_or_going(tmp_path, start, silent, state):
    run = make_run(tmp_path / "run")
    about(run, **start)
    assert read_run(run).state(time.time() + silent) == state


def test_run_facts_have_progress_rate_machine_and_command(tmp_path):
    run = make_run(tmp_path / "run")
    start = {"machine": {"name": "node1", "memory": 25276063744}, "data": {"sets": ["a", "b"]}}
    about(run, steps=80, command="diffclip train x", gpus=[{"name": "H200"}] * 2, **start)
    facts = run_facts(read_run(run))
    assert facts["step"] == "40 of 80 (50 %)"
    assert facts["rate"] == "80 samples per second, 2 % of the time waiting for data"
    assert [facts[name] for name in ("machine", "GPUs")] == ["name node1, memory 23.5 GiB", "2 × H200"]
    assert facts["data"] == "sets a, b"
    assert facts["command"] == "diffclip train x"


def test_a_curve_is_thinned_and_names_the_towers(tmp_path):
    curve = curve_of(make_run(tmp_path / "DiffCLIP-s1", seed=1), points=10)
    assert len(curve["step"]) == 10
    assert (curve["arm"], curve["seed"]) == ("DiffCLIP", 1)
    assert {tower: len(rows[0]) for tower, rows in curve["lambda"].items()} == {"vision": 3, "text": 2}
    assert curve["validation"]["step"] == [20, 40]
    assert curve_of(make_run(tmp_path / "CLIP-s1", "CLIP"))["lambda"] == {}


def test_runs_are_found_two_levels_down_and_other_folders_refused(tmp_path):
    run = make_run(tmp_path / "models" / "CLIP-s0", "CLIP")
    (tmp_path / "models" / "empty").mkdir()
    assert run_folders(tmp_path) == [run]
    (run / "metrics.jsonl").write_text("{")
    with pytest.raises(InputError, match="has no complete step yet"):
        read_run(run)

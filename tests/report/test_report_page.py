from html.parser import HTMLParser

import numpy as np
import pytest
from run_folders import make_run
from suite_records import suite_records

from diffclip.errors import InputError
from diffclip.report import report_run
from diffclip.report.page import Extra, write_report
from diffclip.report.pictures import caption_examples_figure, retrieval_examples_figure
from diffclip.report.runs import read_run

VOID = {"meta", "img", "source"}
PICTURES = np.random.default_rng(0).integers(0, 255, (6, 16, 16, 3), dtype=np.uint8)


class Page(HTMLParser):
    """Checks that tags nest, and keeps what a browser would load and what a reader would read."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        found = dict(attributes)
        self.addresses += [found[name] for name in ("src", "href", "srcset") if name in found]
        self.ids += [found["id"]] if "id" in found else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data


def pages_of(folder, levels, seeds, **options):
    runs = [
        read_run(make_run(folder / f"{model}-s{seed}", model, seed, level=level))
        for model, level in levels.items()
        for seed in range(seeds)
    ]
    path = write_report(folder / "report.html", runs, [], "A title & more", **options)
    return Page(path.read_text()), path.read_text()


@pytest.mark.parametrize(
    ("models", "seeds"),
    [(("CLIP",), 1), (("CLIP", "DiffCLIP"), 1), (("CLIP", "DiffCLIP-vision", "DiffCLIP"), 3)],
)
def test_a_page_stands_alone(tmp_path, models, seeds):
    page, text = pages_of(
        tmp_path, {model: 0.2 + 0.1 * i for i, model in enumerate(models)}, seeds, command="make it"
    )
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert "script" not in page.tags
    assert "url(" not in text
    assert "@import" not in text
    assert "A title & more" in page.words
    assert "make it" in page.words
    assert len(page.ids) == len(set(page.ids))
    assert all(address[1:] in page.ids for address in page.addresses if address.startswith("#"))
    # results, training, validation, telemetry; λ and its way there where a model has one
    differential = len([model for model in models if model != "CLIP"])
    assert ("λ over" in text or "λ by layer" in text) == bool(differential)


def test_the_numbers_of_the_records_are_on_the_page(tmp_path):
    page, _ = pages_of(tmp_path, {"CLIP": 0.2, "DiffCLIP": 0.6}, 1)
    for record in read_run(tmp_path / "DiffCLIP-s0").records:
        assert f"{100 * record.value:.1f} %" in page.words
    assert "DiffCLIP is better than CLIP" in page.words
    assert "chance 10 %" in page.words
    assert "What this does not show" in page.words


def test_a_page_of_a_run_alone_shows_its_best_validation(tmp_path):
    folder = make_run(tmp_path / "run", "CLIP", level=0.3, evaluated=False)
    page = Page(report_run(folder).read_text())
    assert "text→image R@5 30.0 %, image→text R@5 30.0 % after epoch 2" in page.words
    assert "no test set has been evaluated" in page.words


def test_a_page_of_records_alone_has_no_curves(tmp_path):
    run = read_run(make_run(tmp_path / "run"))
    page = Page(write_report(tmp_path / "page.html", [], run.records).read_text())
    assert "training" not in page.ids
    assert "results" in page.ids


def test_a_run_cut_short_at_its_first_step_has_a_page(tmp_path):
    folder = make_run(tmp_path / "run", steps=2, evaluated=False)
    first, *_ = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text(first + '\n{"st')
    (folder / "validation.jsonl").unlink()
    page = Page(report_run(folder).read_text())
    assert "Neither validated nor evaluated yet." in page.words
    assert "1 lines of telemetry were cut short" in page.words


def test_not_a_number_in_the_loss_is_drawn_around(tmp_path):
    folder = make_run(tmp_path / "run", steps=10)
    path = folder / "metrics.jsonl"
    path.write_text(
        path.read_text() + '{"step": 11, "samples": 88, "loss": NaN, "lambda": {"visual": [], "text": []}}\n'
    )
    assert np.isnan(read_run(folder).steps["loss"][-1])
    Page(report_run(folder).read_text())


def test_extras_are_sections_with_their_figures(tmp_path):
    top = {"CLIP": np.array([[0, 1, 2]]), "DiffCLIP": np.array([[3, 4, 5]])}
    figures = [
        retrieval_examples_figure(["a red square"], PICTURES, top, [4]),
        caption_examples_figure(PICTURES[:1], [f"caption {i}" for i in range(6)], top, [{3}]),
    ]
    page, _ = pages_of(tmp_path, {"CLIP": 0.5}, 1, extras=[Extra("Retrieved examples", "The text.", figures)])
    assert "retrieved-examples" in page.ids
    assert sum(address.startswith("data:image/png") for address in page.addresses) == 2


def test_a_report_about_nothing_is_refused(tmp_path):
    with pytest.raises(InputError, match="nothing to report"):
        write_report(tmp_path / "page.html", [], [])
    assert not (tmp_path / "page.html").exists()


def test_only_the_right_picture_is_framed():
    top = {"CLIP": np.array([[0, 1, 2]])}
    framed = retrieval_examples_figure(["a"], PICTURES, top, [1])
    assert [len(axes.patches) for axes in framed.axes] == [0, 1, 0]
    assert not any(axes.patches for axes in retrieval_examples_figure(["a"], PICTURES, top, [5]).axes)


def test_examples_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="2 queries"):
        retrieval_examples_figure(["a", "b"], PICTURES, {"CLIP": np.array([[0, 1]])}, [0, 1])
    with pytest.raises(InputError, match="there are 6"):
        retrieval_examples_figure(["a"], PICTURES, {"CLIP": np.array([[0, 6]])}, [0])


def suite_page(folder, models, **options):
    text = write_report(folder / "page.html", [], suite_records(models, **options)).read_text()
    return Page(text), text


def test_a_suite_is_shown_as_tasks_first_and_single_sets_folded(tmp_path):
    page, text = suite_page(tmp_path, {"CLIP": 0.0, "DiffCLIP": 0.03}, seeds=(0, 1, 2))
    assert page.ids == ["six-tasks", "out-of-domain", "minimal-pairs", "tables", "how-it-was-made"]
    assert page.words.index("DiffCLIP is better than CLIP") < page.words.index("Six tasks")
    assert "2 models, 18 sets" in page.words
    # what is not folded before the first fold: the scoreboard and a figure, no table of a single set
    assert text.partition("<details")[0].count("<table") == 1
    assert text.count("<details") == text.count("</details>")
    assert "Every set, every number" in page.words
    assert "(paper)" not in page.words


def test_sections_are_those_that_have_data(tmp_path):
    records = [one for one in suite_records({"CLIP": 0.0, "DiffCLIP": 0.03}) if one.task == "mmvp"]
    page = Page(write_report(tmp_path / "page.html", [], records).read_text())
    assert page.ids == ["results", "minimal-pairs", "how-it-was-made"]


def test_the_papers_numbers_are_there_where_asked(tmp_path):
    records = suite_records({"CLIP": 0.0, "DiffCLIP": 0.03})
    page = Page(write_report(tmp_path / "page.html", [], records, paper=True).read_text())
    for text in ("CLIP, CC3M (paper)", "29 of 105, 27.6 %", "Transactions on Machine Learning Research"):
        assert text in page.words
    few = [one for one in records if one.dataset == "flickr8k"]
    page = Page(write_report(tmp_path / "few.html", [], few, paper=True).read_text())
    assert page.ids == ["results", "tables", "how-it-was-made"]
    assert "62.1" in page.words


def test_one_model_of_a_suite_has_a_page_without_a_comparison(tmp_path):
    page, _ = suite_page(tmp_path, {"CLIP": 0.0})
    assert "There is no pair to compare." in page.words
    assert "six-tasks" in page.ids


def test_figures_of_a_suite_have_dark_variants(tmp_path):
    page, text = suite_page(tmp_path, {"CLIP": 0.0, "DiffCLIP": 0.03})
    assert text.count("<picture") == text.count('media="(prefers-color-scheme: dark)"') == 8
    assert all(address.startswith(("data:", "#")) for address in page.addresses)

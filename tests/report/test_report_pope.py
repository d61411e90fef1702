"""Answers to yes/no questions in a report: the paper's Table 3, and whether models answer at all."""

import re
from itertools import product

import pytest
from pope_records import pope_records

from diffclip.evaluation.pope_names import POPE, is_blind
from diffclip.report.compare import compare
from diffclip.report.figures import write_tables
from diffclip.report.markdown import write_section
from diffclip.report.page import page
from diffclip.report.paper import paper_numbers
from diffclip.report.pope_data import pope_comparisons, pope_sets, seen_gains, splits_of
from diffclip.report.pope_section import notice, pope_html
from diffclip.report.pope_sheet import pope_sheets
from diffclip.report.pope_words import heedless, paper_line, vague
from diffclip.report.series import Collection, collect
from diffclip.report.verdict import judge


def collection(**options) -> Collection:
    records, outcomes = pope_records(**options)
    return collect([], records, outcomes)


@pytest.fixture(scope="module")
def pair() -> Collection:
    """A CLIP that knows half of the answers, and a DiffCLIP that knows most; each with the picture and without."""
    return collection(skills={"CLIP": 0.5, "DiffCLIP": 0.8})


@pytest.fixture(scope="module")
def deaf() -> Collection:
    return collection(skills={"CLIP": 0.5, "DiffCLIP": 0.8}, words={"CLIP": "Yes", "DiffCLIP": "a picture"})


def counts_that_fit(row, questions: int, yes: int) -> list[tuple[int, int]]:
    """(right yeses, false ones) of so many questions that come to the printed numbers."""

    def printed(share: float, number: float) -> bool:
        return abs(100 * share - number) <= 0.005001

    right = [n for n in range(1, yes + 1) if printed(n / yes, row.recall)]
    return [
        (own, false)
        for own, false in product(right, range(questions - yes + 1))
        if printed(own / (own + false), row.precision)
        and printed((own + questions - yes - false) / questions, row.accuracy)
    ]


def test_the_paper_s_numbers_are_whole_counts_and_the_derived_ones_follow_from_them():
    numbers = paper_numbers().answers
    assert len(numbers.rows) == 6
    for row in numbers.rows:
        questions, yes = numbers.counts[row.split]
        ((own, false),) = counts_that_fit(row, questions, yes)
        assert numbers.yes_ratio(row) == pytest.approx(100 * (own + false) / questions, abs=0.02)
        assert row.f1 == pytest.approx(200 * own / (yes + own + false), abs=0.02)
        assert numbers.right(row) == own + questions - yes - false
        if row.split == "random":  # of no file of questions that is published
            assert counts_that_fit(row, 3000, 1500) == counts_that_fit(row, 2910, 1500) == []
    ratios = [numbers.yes_ratio(row) for row in numbers.rows]
    assert 98 < min(ratios) < max(ratios) < 99.5
    assert "98.1 to 99.3 %" in paper_line()


def test_the_headline_is_the_accuracy_over_all_files_with_the_picture(pair):
    verdict = judge(pair)
    assert [one.measure.split for one in verdict.comparisons] == ["overall"]
    assert verdict.comparisons[0].basis == "items"
    assert "DiffCLIP is better than CLIP at POPE accuracy" in verdict.headline


def test_with_and_without_the_picture_are_never_one_measure(pair):
    for one in compare(pair):
        assert one.measure.task == POPE
    blind = [one for one in compare(pair) if is_blind(one.measure.protocol)]
    assert len(blind) * 2 == len(compare(pair))
    (dataset,) = pope_sets(pair)
    splits = splits_of(pair, dataset)
    assert [split.name for split in splits] == ["random", "popular", "adversarial", "overall"]
    assert not any(is_blind(one.measure.protocol) for one in pope_comparisons(pair, splits))


def test_every_difference_is_paired_by_question(pair):
    splits = splits_of(pair, "scenes")
    told = pope_comparisons(pair, splits)
    assert {one.measure.metric for one in told} == {"accuracy", "precision", "recall", "f1"}
    for one in told:
        assert one.basis == "items"
        low, high = one.difference.low, one.difference.high
        assert low < one.difference.mean < high
        assert one.difference.mean == pytest.approx(one.own.mean - one.reference.mean)
    # three files about the same pictures say more than one
    accuracy = {one.measure.split: one.difference for one in told if one.measure.metric == "accuracy"}
    widths = {split: one.high - one.low for split, one in accuracy.items()}
    assert widths["overall"] < min(widths[split] for split in ("random", "popular", "adversarial"))


def test_what_the_picture_adds_is_paired_too(pair):
    gains = seen_gains(pair, splits_of(pair, "scenes")[-1])
    found = {series.variant: one for series, seeds in gains.items() for one in seeds.values()}
    assert found["DiffCLIP"].basis == "items"
    assert found["DiffCLIP"].mean == pytest.approx(0.4, abs=0.06)
    assert found["DiffCLIP"].mean > found["CLIP"].mean > 0.1


def test_the_paper_s_table_has_ours_its_own_and_the_same_answer_to_everything(pair):
    (plain,), (sheet,) = pope_sheets(pair), pope_sheets(pair, paper=True)
    assert [block.title for block in sheet.blocks] == [
        "Random",
        "Popular",
        "Adversarial",
        "Mean of the three",
    ]
    labels = [line.label for line in sheet.blocks[0].lines]
    without = ["CLIP, without the picture", "DiffCLIP, without the picture"]
    printed = ["CLIP, CC12M (paper)", "DiffCLIP, CC12M (paper)"]
    assert labels == ["CLIP", "DiffCLIP", *without, "always yes", *printed]
    assert [line.label for line in plain.blocks[0].lines] == labels[:-2]
    always, paper = sheet.blocks[0].lines[4], sheet.blocks[0].lines[6]
    assert [cell.text for cell in always.cells] == ["50.0", "50.0", "100.0", "66.7", "100.0", "0.0"]
    assert [cell.text for cell in paper.cells] == [
        *("50.41 (+0.27)", "50.21 (+0.14)", "98.56 (+0.35)", "66.5*", "98.1*", "–")
    ]
    assert sheet.blocks[0].lines[1].cells[0].gain is not None
    assert all(cell.gain is None for line in sheet.blocks[0].lines[2:4] for cell in line.cells)
    assert "random +0.27 points, p = 0.85" in " ".join(sheet.notes)


def test_a_model_that_does_not_answer_is_named_before_any_number(deaf, pair):
    said = pope_html(deaf)
    assert "CLIP on scenes is not answering the questions: 100.0 % of its answers are yes" in said
    assert "100.0 % of what DiffCLIP on scenes says is not plainly yes or no" in said
    assert said.index("not answering") < said.index("<table")
    assert "98.1 to 99.3 % of the answers are yes" in said
    assert "(CLIP, DiffCLIP)" in notice(deaf)
    assert notice(pair) == ""
    assert "not answering" not in pope_html(pair)


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        (
            {"random": 0.951, "popular": 0.999, "overall": 0.97},
            "95.1 to 99.9 % of its answers are yes (random, popular)",
        ),
        ({"random": 0.01, "popular": 0.5}, "99.0 % of its answers are no (random)"),
        ({"overall": 1.0}, "100.0 % of its answers are yes (overall)"),
        ({"random": 0.95, "popular": 0.05}, None),
    ],
)
def test_nearly_all_answers_alike_is_more_than_95_percent(ratios, words):
    line = heedless("It", ratios)
    assert line is None if words is None else words in line


def test_a_few_unclear_answers_are_not_worth_a_line():
    assert vague("It", {"random": 0.05, "overall": 0.05}) is None
    assert "6.0 % of what It says is not plainly yes or no (random)" in vague(
        "It", {"random": 0.06, "overall": 0.06}
    )


def test_page_markdown_and_files_have_the_section(deaf, tmp_path):
    text = page(deaf, "A title", paper=True)
    assert '<section id="pope"><h2>POPE</h2>' in text
    assert text.index("Nearly all answers to POPE&#x27;s questions are the same") < text.index("<nav>")
    assert text.count("POPE on scenes, ") == 8  # four splits, with and without the picture
    write_section(tmp_path / "results.md", "pope", deaf, tmp_path / "figures", paper=True)
    section = (tmp_path / "results.md").read_text()
    assert "| *CLIP, CC12M (paper)* | 50.14 | 50.07 | 98.21 |" in section
    assert "Nearly all answers to POPE's questions are the same" in section
    assert re.search(r"- \*\*CLIP on scenes is not answering", section)
    assert {path.name for path in write_tables(tmp_path, deaf, paper=True)} == {
        "pope_scenes.md",
        "pope_scenes.tex",
    }


def test_several_seeds_are_paired_by_seed_and_named_where_one_does_not_answer():
    several = collection(skills={"CLIP": 0.5, "DiffCLIP": 0.8}, seeds=3, words={"CLIP": "No"})
    told = pope_comparisons(several, splits_of(several, "scenes"))
    assert {one.basis for one in told} == {"seeds"}
    said = pope_html(several)
    assert "CLIP (seed 2) on scenes is not answering the questions: 100.0 % of its answers are no" in said
    assert "mean of 3 training seeds" in said
    assert "Every seed" not in page(several, "A title")  # what it would fold is in the section


def test_only_blind_answers_are_told_as_such():
    records, outcomes = pope_records({"CLIP": 0.5})
    blind = collect([], [record for record in records if is_blind(record.protocol)], outcomes)
    (sheet,) = pope_sheets(blind)
    assert [line.label for line in sheet.blocks[0].lines] == ["CLIP, without the picture", "always yes"]
    assert "POPE on scenes, random, without the picture" in pope_html(blind)
    assert page(blind, "A title")


def test_a_report_without_questions_has_no_such_section():
    from made_results import record

    other = collect([], [record("CLIP", "acc1", 0.5)], {})
    assert pope_html(other) == ""
    assert pope_sheets(other) == []
    assert 'id="pope"' not in page(other, "A title")

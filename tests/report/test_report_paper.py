import itertools
import json
from importlib.resources import files

import pytest
from suite_records import paper_records, suite_records

from diffclip.evaluation.significance import compare_counts
from diffclip.report.compare import by_series, estimate
from diffclip.report.paper import paper_numbers, paper_panels
from diffclip.report.paper_tables import paper_sheets
from diffclip.report.printed import PRINTED
from diffclip.report.series import collect
from diffclip.report.six_tasks import six_task_measures

TABLES = {table.name: table for table in paper_numbers().tables}
ROWS = [(name, row) for name, table in TABLES.items() for row in table.rows]
TWO = {"CLIP": 0.0, "DiffCLIP": 0.03}


def sheet_of(records, name, paper=False):
    (found,) = [one for one in paper_sheets(collect([], records), paper) if one.name == name]
    return found


def line_of(sheet, label, block=0):
    (found,) = [line for line in sheet.blocks[block].lines if line.label == label]
    return dict(zip(sheet.columns, found.cells, strict=True))


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_a_printed_average_is_that_of_its_row(name, row):
    assert len(row.values) == len(TABLES[name].sets)
    if row.average is not None:
        # nine or three values of one decimal, and the rounding of their mean
        assert sum(row.values) / len(row.values) == pytest.approx(row.average, abs=0.1001)
    if row.sds is not None:
        assert len(row.sds) == len(row.values)


@pytest.mark.parametrize(("name", "row"), [(name, row) for name, row in ROWS if row.gains])
def test_printed_gains_are_differences_of_printed_values(name, row):
    base = TABLES[name].baseline(row)
    for value, reference, gain in zip(row.values, base.values, row.gains, strict=True):
        assert value - reference == pytest.approx(gain, abs=0.051)
    if row.average is not None:
        assert row.average - base.average == pytest.approx(row.average_gain, abs=0.051)


def test_gains_in_the_text_agree_with_each_other_and_with_the_tables():
    panels = paper_panels()
    gain = {(one.panel, one.model, one.baseline): one.gain for one in paper_numbers().statements}
    for (panel, model, baseline), value in gain.items():
        if baseline == "DiffCLIP":
            _, standard = panels["DiffCLIP", "CC12M"][panel]
            assert gain[panel, model, "CLIP"] - standard == pytest.approx(value, abs=0.1001)


def test_counts_of_pairs_give_the_printed_percentages_and_no_other_number_of_patterns_does():
    pairs = paper_numbers().pairs
    assert pairs.pairs == 15 * pairs.patterns
    for row in pairs.rows:
        assert round(100 * row.right / pairs.pairs, 1) == row.printed
        assert all(round(100 * right / 135, 1) != row.printed for right in range(136))


def test_every_number_says_where_it_is_from():
    numbers = paper_numbers()
    places = [table.source for table in numbers.tables] + [one.source for one in numbers.statements]
    assert all("Table" in place or "Section" in place for place in [*places, numbers.pairs.source])
    json.loads(files("diffclip.report").joinpath("paper_numbers.json").read_text("utf-8"))


def test_the_papers_own_numbers_give_the_papers_averages():
    collection = collect([], paper_records())
    measures = six_task_measures(collection)
    for (model, pretraining), panels in paper_panels().items():
        for panel, (value, _) in panels.items():
            if value is not None:
                (series,) = [one for one in collection.series if one.model == f"{model}-{pretraining}"]
                ours = estimate(by_series(collection.results, measures[panel])[series])
                assert 100 * ours.mean == pytest.approx(value, abs=0.1001)


def test_tables_have_a_column_a_set_in_the_papers_order_with_gains():
    sheet = sheet_of(suite_records(TWO), "classification")
    assert sheet.columns[:3] == ["Caltech-101", "DTD", "Pets"]
    assert sheet.columns[-1] == "Avg."
    assert [block.title for block in sheet.blocks] == ["Linear probing", "Few-shot"]
    clip, ours = line_of(sheet, "CLIP"), line_of(sheet, "DiffCLIP")
    for column in sheet.columns:
        assert clip[column].gain is None
        difference = float(ours[column].text) - float(clip[column].text)
        assert 100 * ours[column].gain == pytest.approx(difference, abs=0.11)
    assert ours["Avg."].real


def test_linear_probes_are_shown_in_the_metric_of_their_set():
    records = suite_records({"CLIP": 0.0})
    cell = line_of(sheet_of(records, "classification"), "CLIP")
    for dataset, head, metric in (
        ("pets", "Pets", "mean_per_class_recall"),
        ("dtd", "DTD", "acc1"),
    ):
        (record,) = [
            one for one in records if (one.task, one.dataset, one.metric) == ("linear-probe", dataset, metric)
        ]
        assert cell[head].text == f"{100 * record.value:.1f}"


def test_retrieval_has_both_directions_and_imagenet():
    sheet = sheet_of(suite_records(TWO), "retrieval", paper=True)
    assert [(span.title, len(span.columns)) for span in sheet.spans] == [
        ("Image retrieval (R@5)", 4),
        ("Text retrieval (R@5)", 4),
        ("Zero-shot", 1),
    ]
    (printed,) = [line for line in sheet.blocks[0].lines if line.label == "DiffCLIP, CC12M (paper)"]
    assert [cell.text for cell in printed.cells] == [
        "62.2",
        "61.5",
        "42.3",
        "55.3",
        "77.4",
        "77.4",
        "55.5",
        "70.1",
        "33.8",
    ]
    assert round(100 * printed.cells[0].gain, 1) == -0.3
    assert not any(cell.real for cell in printed.cells)


def test_without_being_asked_the_paper_is_not_there():
    sheets = paper_sheets(collect([], suite_records(TWO)))
    assert all(line.ours for sheet in sheets for block in sheet.blocks for line in block.lines)
    assert not any("(paper)" in note for sheet in sheets for note in sheet.notes)


def test_an_average_of_the_paper_is_over_the_sets_that_are_shown():
    some = [one for one in suite_records(TWO) if one.dataset in ("cifar10", "dtd")]
    sheet = sheet_of(some, "classification", paper=True)
    assert sheet.columns == ["DTD", "CIFAR-10", "Avg."]
    assert line_of(sheet, "CLIP, CC3M (paper)")["Avg."].text == f"{(58.7 + 83.5) / 2:.1f}"


def test_repetitions_give_standard_deviations_over_draws_or_training_seeds():
    for records, over in (
        (suite_records(TWO, draws=(0, 1, 2)), "over 3 draws of one trained model"),
        (suite_records(TWO, seeds=(0, 1, 2)), "over 3 training seeds"),
    ):
        sheet = sheet_of(records, "linear_probe_spread", paper=True)
        assert over in sheet.notes[0]
        assert all(cell.sd is not None for cell in line_of(sheet, "DiffCLIP").values())
        assert line_of(sheet, "CLIP, CC12M (paper)")["Pets"].sd == pytest.approx(0.008)
    once = paper_sheets(collect([], suite_records(TWO)))
    assert not any(sheet.name.endswith("_spread") for sheet in once)


def test_pairs_are_counted_and_the_papers_gap_is_tested():
    sheet = sheet_of(suite_records(TWO), "minimal_pairs_mmvp", paper=True)
    assert sheet.columns == ["CLIP", "DiffCLIP"]
    assert len(sheet.blocks[0].lines) == 9 + 1 + 1
    assert " of 135, " in line_of(sheet, "all pairs")["CLIP"].text
    assert line_of(sheet, "7 patterns, CC12M (paper)")["DiffCLIP"].text == "29 of 105, 27.6 %"
    test = compare_counts(29, 105, 23, 105)
    assert f"p = {test.p:.2f}" in " ".join(sheet.notes)


def test_a_larger_drop_is_no_gain():
    records = [
        one.model_copy(update={"value": value, "low": value - 0.004, "high": value + 0.004})
        for one in suite_records(TWO)
        if one.task == "zero-shot" and one.dataset.startswith("imagenet")
        for value in [0.6 if one.dataset == "imagenet1k" and one.model.startswith("Diff") else 0.3]
    ]
    cell = line_of(sheet_of(records, "out_of_domain_imagenet1k"), "DiffCLIP")["Drop"]
    assert cell.gain == pytest.approx(0.3)
    assert cell.outcome == "lower"


def test_every_table_states_models_sets_seeds_and_protocol():
    sheets = paper_sheets(collect([], suite_records(TWO, seeds=(0, 1, 2))))
    assert len(sheets) == 8
    for sheet, start in itertools.product(sheets, ("Models: ", "Sets: ", "Training seeds: ", "Protocol")):
        assert any(note.startswith(start) for note in sheet.notes), (sheet.name, start)


def test_one_measure_has_one_verdict_in_all_tables():
    sheets = paper_sheets(collect([], suite_records(TWO)))
    by_name = {sheet.name: sheet for sheet in sheets}
    six = line_of(by_name["six_tasks"], "DiffCLIP")
    assert six["Linear probing"] == line_of(by_name["classification"], "DiffCLIP")["Avg."]
    assert six["Zero-shot ImageNet"] == line_of(by_name["out_of_domain_imagenet1k"], "DiffCLIP")["ImageNet"]
    assert six["Out of domain"] == line_of(by_name["out_of_domain_imagenet1k"], "DiffCLIP")["Mean of shifts"]


def test_the_papers_zero_shot_stands_only_beside_imagenet():
    cell = line_of(sheet_of(suite_records(TWO), "six_tasks", paper=True), "CLIP, CC12M (paper)")
    assert cell["Zero-shot ImageNet"].text == "31.8"
    others = [one for one in suite_records(TWO) if "imagenet" not in one.dataset]
    cell = line_of(sheet_of(others, "six_tasks", paper=True), "CLIP, CC12M (paper)")
    assert cell["Zero-shot"].text == "–"
    assert cell["Few-shot"].text == "85.3"


def test_one_set_has_no_average():
    some = [one for one in suite_records(TWO) if one.dataset in ("flickr8k", "dtd")]
    assert sheet_of(some, "classification", paper=True).columns == ["DTD"]
    sheet = sheet_of(some, "retrieval", paper=True)
    assert sheet.columns == ["Flickr8k", "Flickr8k"]
    assert [cell.text for cell in line_of_cells(sheet, "DiffCLIP, CC3M (paper)")] == ["36.5", "47.8"]


def line_of_cells(sheet, label):
    return next(line.cells for line in sheet.blocks[0].lines if line.label == label)


def test_rows_of_the_paper_that_say_nothing_here_are_left_out():
    records = suite_records({"CLIP": 0.0, "DiffCLIP": 0.02})
    ours = [
        one.model_copy(update={"dataset": f"my-{one.dataset}"}) for one in records if one.task == "few-shot"
    ]
    sheets = {sheet.name: sheet for sheet in paper_sheets(collect([], ours), paper=True)}
    few = sheets["classification"]
    assert all(line.ours for block in few.blocks for line in block.lines)
    assert not any(note.startswith(PRINTED) for note in few.notes)
    everything = sheet_of(records, "classification", paper=True)
    assert not all(line.ours for block in everything.blocks for line in block.lines)
    assert any(note.startswith(PRINTED) for note in everything.notes)

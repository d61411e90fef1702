"""Where models look: hundreds of numbers stay out of the way of all others, and those shown are shown as they are."""

import gc
import re
import weakref

import pytest
from focus_records import focus_records
from made_results import record, runs_of
from suite_records import suite_records

from diffclip.evaluation.focus_names import is_detail
from diffclip.evaluation.records import read_records
from diffclip.report.compare import Measure, compare
from diffclip.report.course import course_chart
from diffclip.report.figures import all_charts
from diffclip.report.focus_charts import focus_charts
from diffclip.report.focus_data import (
    by_layer,
    comparisons_on,
    focus_sets,
    layer_comparisons,
    shown_on,
    stems,
)
from diffclip.report.focus_metrics import (
    SHOWN,
    focus_name,
    is_merit,
    is_shown,
    is_tested,
    plain,
    uniform_level,
)
from diffclip.report.focus_section import focus_markdown
from diffclip.report.focus_tables import focus_tables, folded_tables
from diffclip.report.markdown import write_section
from diffclip.report.metrics import amount, metric_name
from diffclip.report.page import page
from diffclip.report.paper_tables import paper_sheets
from diffclip.report.save import save_results
from diffclip.report.series import collect
from diffclip.report.sources import read_outcomes_of, read_sources
from diffclip.report.style import svg_of
from diffclip.report.tables import result_tables
from diffclip.report.verdict import judge

MODELS = {"CLIP": 0.0, "DiffCLIP": 0.2}


def measure(metric: str, protocol: str = "focus; 8×8 patches; ties count half") -> Measure:
    return Measure("focus", "scenes", "test", metric, protocol)


@pytest.fixture(scope="module")
def alone():
    """One training run each, with the outcomes of items."""
    return collect([], *focus_records(MODELS, hits=True))


def test_other_results_read_as_if_nothing_had_been_looked_at(tmp_path):
    runs = runs_of(tmp_path, {"CLIP": 0.3, "DiffCLIP": 0.5}, 3)
    records, outcomes = focus_records(MODELS, range(3), hits=True)
    # of the same models as the runs
    model = {run.variant: run.records[0].model for run in runs}
    records = [one.model_copy(update={"model": model[one.model.rpartition("-v")[0]]}) for one in records]
    plain_one, with_focus = collect(runs, []), collect(runs, records, outcomes)
    assert [series.label for series in with_focus.series] == ["CLIP", "DiffCLIP"]
    assert judge(with_focus) == judge(plain_one)
    assert result_tables(with_focus) == result_tables(plain_one)
    assert not any(is_detail(one.record.metric) for one in with_focus.results)
    details = [one for one in records if is_detail(one.metric)]
    assert len(with_focus.details) == len(details) > 1000
    names = [chart.name for chart in all_charts(plain_one)]
    assert [name for chart in all_charts(with_focus) if not (name := chart.name).startswith("focus")] == names


def test_averages_and_the_papers_tables_leave_it_out():
    suite = suite_records(MODELS)
    models = {one.model.partition("-V")[0]: one.model for one in suite}
    looks = [
        one.model_copy(update={"model": models[one.model.partition("-v")[0]]})
        for one in focus_records(MODELS)[0]
    ]
    before, after = collect([], suite), collect([], [*suite, *looks])
    assert paper_sheets(after) == paper_sheets(before)
    assert [one.record for one in after.results if one.parts] == [
        one.record for one in before.results if one.parts
    ]
    assert judge(after) == judge(before)


def test_a_course_shows_no_detail():
    records = [
        one.model_copy(update={"weights": f"runs/{one.model}/checkpoints/step_{step:08d}"})
        for step in (100, 200, 300)
        for one in focus_records({"DiffCLIP": 0.0})[0]
    ]
    collection = collect([], records)
    assert collection.course
    assert not any(is_detail(result.record.metric) for _, result in collection.course)
    assert [panel.title for panel in course_chart(collection).panels] == [
        "scenes test: area under ROC of relevance",
        "scenes test: pointing game of relevance",
    ]
    assert {result.record.weights[-3:] for result in collection.details} == {"300"}


def test_alone_the_verdict_is_about_what_is_better_or_worse(alone):
    verdict = judge(alone)
    assert verdict.headline == (
        "In one training run each on scenes (test), DiffCLIP is better than CLIP at area under ROC of relevance and "
        "pointing game of relevance."
    )
    assert {one.tests for one in verdict.comparisons} == {2}
    described = [
        one for one in focus_records(MODELS)[0] if one.metric.endswith(("entropy", "top10", "class_token"))
    ]
    only = judge(collect([], described))
    assert only.headline == "What was measured describes the models, and is neither better nor worse."
    assert only.comparisons == []
    assert "better</em>" not in page(collect([], described), "x")


def test_the_table_has_eight_measures_and_the_rest_is_folded(alone):
    (table,) = focus_tables(alone)
    assert [column.partition(" (n")[0] for column in table.columns[1:]] == [metric_name(one) for one in SHOWN]
    (where,) = focus_sets(alone)
    told = comparisons_on(alone, where)
    assert len(told) == len(SHOWN)
    # two are corrected with the verdict, as they stand there
    assert sorted(one.tests for one in told) == [2, 2, *[6] * 6]
    assert result_tables(alone) == []
    titles = [one.title for one in folded_tables(alone)]
    assert titles[:6] == [
        f"Focus on scenes, test split: {kind}"
        for kind in ("relevance", "rollout", "attention", "A1", "A2", "A1 and A2")
    ]
    assert titles[6] == "Area under ROC of relevance, by layer: scenes, test split"


def test_what_is_no_share_has_no_percent(alone):
    for table in [*focus_tables(alone), *folded_tables(alone)]:
        layers = table.columns[1] == "layer 1"
        for place, head in enumerate(table.columns[1:], 1):
            name = table.title if layers else head
            plain_ones = ("object lift", "effective patches", "correlation of")
            shares = not name.lower().startswith(plain_ones)
            cells = [row.cells[place] for row in table.rows if row.kind != "difference"]
            assert all(("%" in cell) == shares for cell in cells if cell != "–"), (name, cells)
    (where,) = focus_sets(alone)
    lift = next(
        one for one in compare(alone) if one.measure == where._replace(metric="relevance_inside_over_area")
    )
    (table,) = focus_tables(alone)
    row = next(row for row in table.rows if row.kind == "difference")
    assert row.cells[3].startswith(f"+{lift.difference.mean:.2f} [")
    assert "1.3" in next(row for row in table.rows if row.kind == "one").cells[3]


def test_a_uniform_map():
    told = {
        metric: uniform_level(measure(metric))
        for metric in (
            "relevance_auroc",
            "A2_inside_over_area",
            "attention_entropy/layer 2 head 1",
            "A1_top10",
        )
    }
    assert list(told.values()) == [0.5, 1.0, 1.0, 10 / 64]
    assert uniform_level(measure("attention_class_token")) == 1 / 65
    assert uniform_level(measure("rollout_effective_patches")) == 64
    # an object's area is not in the protocol, and two maps that are the same do not differ
    for metric in ("relevance_ap", "relevance_pointing", "A1_minus_A2_entropy", "A1_A2_correlation"):
        assert uniform_level(measure(metric)) is None
    assert uniform_level(measure("A1_top10", "focus")) is None


def test_names_and_numbers_for_readers():
    assert metric_name("attention_class_token") == "class-token share of attention"
    assert metric_name("A1_minus_A2_entropy/layer 3") == "entropy, A1 − A2: layer 3"
    assert metric_name("A1_A2_correlation") == "correlation of A1 with A2"
    assert focus_name("acc1") is None
    assert focus_name("relevance_of_nothing") is None
    assert (amount("relevance_ap", 0.123), amount("relevance_inside_over_area", 1.234)) == ("12.3 %", "1.23")
    assert (amount("A1_effective_patches", 31.26), amount("A1_A2_correlation", None)) == ("31.3", "–")
    assert plain(-0.0004, "acc1", sign=True) == "0.0"
    assert [is_merit(measure(one)) for one in ("rollout_inside", "A1_inside", "attention_background10")] == [
        True,
        False,
        False,
    ]
    assert is_merit(measure("acc1")._replace(task="zero-shot"))


def test_page_and_markdown_have_a_section_of_it(tmp_path):
    # without layers there is one chart to draw
    records, outcomes = focus_records(MODELS, details=False, hits=True)
    beside = collect([], [*records, *(record(model, "acc1", 0.5) for model in MODELS)])
    text = page(beside, "A page")
    assert '<section id="focus">' in text
    words = re.sub(r"<[^>]*>", " ", re.sub(r'"data:[^"]*"', "", text))
    assert "Is A1 salient, and A2 diffuse?" in words
    assert text.count("<details><summary>Other maps and measures, and every layer</summary>") == 1
    assert '<section id="focus">' not in page(collect([], [record("CLIP", "acc1", 0.5)]), "A page")

    file = tmp_path / "results.md"
    write_section(file, "x", collect([], records, outcomes), tmp_path / "figures")
    markdown = file.read_text()
    assert re.findall(r"figures/x_(\w+)\.png", markdown) == ["focus_scenes"]
    assert (tmp_path / "figures" / "x_focus_scenes.svg").is_file()
    assert "**DiffCLIP − CLIP" not in markdown


def test_the_section_has_every_chart_where_it_belongs(alone):
    links = {chart.name: chart.name for own in focus_charts(alone).values() for chart in own}
    text = "\n".join(focus_markdown(alone, links))
    order = ["focus_scenes\n", "**Focus on scenes, test split**", "focus_layers_scenes", "Is A1 salient"]
    order += [
        "focus_pairs_scenes",
        "focus_heads_scenes",
        "<summary>Other maps",
        "by layer: scenes, test split**",
    ]
    places = [text.index(one) for one in order]
    assert places == sorted(places)


def test_what_was_worked_out_goes_with_its_collection():
    collection = collect([], *focus_records({"DiffCLIP": 0.0}))
    (where,) = focus_sets(collection)
    named = where._replace(metric="attention_entropy")
    assert by_layer(collection, named) is by_layer(collection, named)
    layer_comparisons(collection, named)
    compare(collection)
    gone = weakref.ref(collection)
    del collection
    gc.collect()
    assert gone() is None


def test_charts_are_of_each_set():
    records = [
        one
        for dataset in ("scenes", "pets")
        for one in focus_records(MODELS, dataset=dataset, details=dataset == "scenes")[0]
    ]
    other = focus_records({"DiffCLIP": 0.0}, dataset="pets", details=False, protocol="focus; 7×7 patches")[0]
    collection = collect([], records + other)
    assert stems(focus_sets(collection)) == ["scenes", "pets_1", "pets_2"]
    charts = {kind: [chart.name for chart in own] for kind, own in focus_charts(collection).items()}
    assert charts == {
        "detectors": ["focus_scenes", "focus_pets_1", "focus_pets_2"],
        "layers": ["focus_layers_scenes"],
        "pairs": ["focus_pairs_scenes"],
        "heads": ["focus_heads_scenes"],
    }
    (_, _, patches) = focus_sets(collection)
    assert shown_on(collection, patches)


def test_condensed_results_make_the_same_section_of_fewer_records(tmp_path):
    records, outcomes = focus_records(MODELS, hits=True)
    save_results([], tmp_path / "saved", records, outcomes)
    saved, kept = (
        read_records(tmp_path / "saved" / "records.jsonl"),
        read_outcomes_of([tmp_path / "saved"]),
    )
    assert len(saved) < len(records) / 2
    assert len(kept) < len(outcomes) / 2
    assert [one for one in records if not is_detail(one.metric)] == [
        one for one in saved if not is_detail(one.metric)
    ]
    before, after = collect([], records, outcomes), collect(*read_sources([tmp_path / "saved"]), kept)
    assert [one.basis for one in compare(after)] == ["items"] * len(compare(after))
    assert focus_tables(after) == focus_tables(before)
    assert folded_tables(after) == folded_tables(before)
    svgs = [[svg_of(chart.figure()) for chart in focus_charts(one)["heads"]] for one in (before, after)]
    assert svgs[0] == svgs[1]


def test_numbers_of_other_tasks_are_always_shown_and_tested():
    for metric in ("acc1", "pair_accuracy/Color and Appearance", "mean_per_class_recall"):
        assert is_shown(metric)
        assert is_tested(metric)

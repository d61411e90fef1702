import pytest
from suite_records import suite_records
from test_report_six_tasks import overlapping

from diffclip.data.mmvp import PATTERNS
from diffclip.report.radar import count_of, count_text, pair_measures, radar_chart
from diffclip.report.series import collect

TWO = {"CLIP": 0.0, "DiffCLIP": 0.3}
FOUR = {**TWO, "DiffCLIP-dynamic": 0.5, "DiffCLIP-vision": -0.1}


@pytest.mark.parametrize("models", [{"CLIP": 0.0}, TWO, FOUR])
def test_a_line_a_model_through_all_patterns(models):
    chart = radar_chart(collect([], suite_records(models)))
    (axes,) = chart.panels[0].figure().axes
    closed = [line for line in axes.lines if len(line.get_xdata()) == len(PATTERNS) + 1]
    assert len(closed) == len(models)
    assert len({line.get_color() for line in closed}) == len(models)
    assert len({str(line.get_linestyle()) + str(line._dash_pattern) for line in closed}) == len(models)


def test_chance_is_a_circle_at_a_quarter():
    (axes,) = radar_chart(collect([], suite_records(TWO))).panels[0].figure().axes
    dashed = [
        patch.get_radius()
        for patch in axes.patches
        if patch.get_linestyle() not in ("-", "solid") and hasattr(patch, "get_radius")
    ]
    assert dashed == [0.25]


def test_counts_are_beneath_the_patterns():
    records = suite_records(TWO)
    (axes,) = radar_chart(collect([], records)).panels[0].figure().axes
    written = " ".join(text.get_text().replace("\n", " ") for text in axes.texts)
    for pattern in PATTERNS:
        right = [round(15 * one.value) for one in records if one.metric == f"pair_accuracy/{pattern}"]
        assert f"{pattern} {right[0]} · {right[1]} of 15" in written


@pytest.mark.parametrize("models", [TWO, FOUR])
@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_labels_do_not_lie_on_each_other_or_outside(models, seeds):
    figure = radar_chart(collect([], suite_records(models, seeds=seeds))).panels[0].figure()
    assert overlapping(figure) == []
    renderer = figure.canvas.get_renderer()
    width, height = figure.get_size_inches() * figure.dpi
    for text in figure.axes[0].texts:
        box = text.get_window_extent(renderer)
        assert box.x0 >= 0
        assert box.x1 <= width
        assert box.y0 >= 0
        assert box.y1 <= height


def test_seeds_are_averaged():
    collection = collect([], suite_records(TWO, seeds=(0, 1, 2)))
    whole = pair_measures(collection, "mmvp")[""]
    right, pairs = count_of(collection, whole, collection.series[0])
    own = [
        one.record.value
        for one in collection.results
        if one.record.metric == "pair_accuracy" and one.series == collection.series[0]
    ]
    assert pairs == 135
    assert right == pytest.approx(sum(own) / 3 * 135)
    assert (count_text(4.0), count_text(13 / 3)) == ("4", "4.3")


def test_fewer_than_three_patterns_have_no_radar():
    records = [
        one
        for one in suite_records(TWO)
        if not one.metric.startswith("pair_accuracy/") or one.metric.endswith(("Count", "Texts"))
    ]
    assert radar_chart(collect([], records)) is None

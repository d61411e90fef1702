import xml.etree.ElementTree as ET

import numpy as np
import pytest
from made_results import record
from run_folders import make_run

from diffclip.config import ABLATIONS, VARIANTS
from diffclip.report.bars import metric_chart
from diffclip.report.charts import save_chart
from diffclip.report.curves import smooth, telemetry_chart, training_chart, validation_chart
from diffclip.report.lambdas import lambda_chart, lambda_training_chart
from diffclip.report.runs import read_run
from diffclip.report.series import Series, collect
from diffclip.report.style import COLOURS, colours_of, darkened, svg_of

CHARTS = (
    training_chart,
    validation_chart,
    telemetry_chart,
    lambda_chart,
    lambda_training_chart,
    metric_chart,
)


def collection_of(folder, models, seeds, **options):
    return collect(
        [
            read_run(make_run(folder / f"{m}-s{seed}", m, seed, **options))
            for m in models
            for seed in range(seeds)
        ],
        [],
    )


@pytest.mark.parametrize("make", CHARTS)
def test_every_chart_is_saved_as_png_and_svg(tmp_path, make):
    chart = make(collection_of(tmp_path, ("CLIP", "DiffCLIP"), 1))
    png, svg = save_chart(chart, tmp_path / "figures", "demo")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert ET.fromstring(svg.read_text()).tag.endswith("svg")
    assert (png.name, svg.name) == ("demo.png", "demo.svg")


def test_equal_figures_are_equal_files(tmp_path):
    collection = collection_of(tmp_path, ("CLIP",), 1)
    assert svg_of(training_chart(collection).figure()) == svg_of(training_chart(collection).figure())


def test_a_model_without_lambda_has_no_lambda_chart(tmp_path):
    collection = collection_of(tmp_path, ("CLIP",), 1)
    assert lambda_chart(collection) is None
    assert lambda_training_chart(collection) is None


def test_lambda_panels_are_of_the_towers_that_have_one(tmp_path):
    chart = lambda_training_chart(collection_of(tmp_path, ("CLIP", "DiffCLIP-vision", "DiffCLIP"), 1))
    assert [panel.title for panel in chart.panels] == [
        "DiffCLIP: λ, vision tower",
        "DiffCLIP: λ, text tower",
        "DiffCLIP-vision: λ, vision tower",
    ]


def test_lambda_chart_draws_the_last_values_and_where_they_began(tmp_path):
    collection = collection_of(tmp_path, ("DiffCLIP-dynamic",), 1)
    (axes,) = lambda_chart(collection).panels[0].figure().axes
    begin, end = (line.get_ydata() for line in axes.lines)
    assert begin == pytest.approx([0.2, 0.8 - 0.6 * np.exp(-0.3), 0.8 - 0.6 * np.exp(-0.6)])
    assert end == pytest.approx(collection.runs[0][1].last_lambdas["visual"])


def test_without_results_or_validation_there_is_no_chart_of_them(tmp_path):
    folder = make_run(tmp_path / "run", evaluated=False)
    (folder / "validation.jsonl").unlink()
    collection = collect([read_run(folder)], [])
    assert metric_chart(collection) is None
    assert validation_chart(collection) is None


def test_one_colour_a_model_and_one_line_style_a_seed(tmp_path):
    collection = collection_of(tmp_path, ("CLIP", "DiffCLIP"), 2)
    (axes,) = training_chart(collection).panels[0].figure().axes
    strong = [line for line in axes.lines if line.get_linewidth() > 1]
    assert [line.get_color() for line in strong] == [COLOURS["CLIP"]] * 2 + [COLOURS["DiffCLIP"]] * 2
    assert [line.get_linestyle() for line in strong] == ["-", "--"] * 2


def test_chance_is_drawn_where_validations_count_what_they_saw(tmp_path):
    folder = make_run(tmp_path / "run")
    path = folder / "validation.jsonl"
    (axes,) = validation_chart(collect([read_run(folder)], [])).panels[0].figure().axes
    assert not axes.texts
    path.write_text(path.read_text().replace('"epoch"', '"pictures": 100, "captions": 500, "epoch"'))
    (axes,) = validation_chart(collect([read_run(folder)], [])).panels[0].figure().axes
    assert [text.get_text() for text in axes.texts] == ["chance 5 %"]


@pytest.mark.parametrize("make", CHARTS)
def test_ablations_come_after_the_variants_in_every_chart(tmp_path, make):
    collection = collection_of(tmp_path, ("DiffCLIP-no-norm", "DiffCLIP-lambda0", "DiffCLIP", "CLIP"), 1)
    assert [one.label for one in collection.series] == [
        *("CLIP", "DiffCLIP", "DiffCLIP-lambda0", "DiffCLIP-no-norm")
    ]
    assert make(collection).figure()


def test_a_lambda_that_is_fixed_has_no_start(tmp_path):
    def dotted(model):
        (axes,) = lambda_chart(collection_of(tmp_path, (model,), 1)).panels[0].figure().axes
        return [line.get_linestyle() for line in axes.lines].count("--")

    assert (dotted("DiffCLIP-no-norm"), dotted("DiffCLIP-lambda0")) == (1, 0)


def test_every_variant_has_a_colour_of_its_own():
    series = [
        Series(f"{variant} {n}", variant, variant, None)
        for variant in (*VARIANTS, *ABLATIONS, "custom")
        for n in range(4)
    ]
    assert len(set(colours_of(series).values())) == len(series)


def test_a_variant_keeps_its_colour_and_a_second_of_it_gets_another(tmp_path):
    runs = [read_run(make_run(tmp_path / init, "DiffCLIP", init=init)) for init in ("matched", "published")]
    colours = colours_of(collect(runs, []).series)
    assert next(iter(colours.values())) == COLOURS["DiffCLIP"]
    assert len(set(colours.values())) == 2


def test_bars_are_of_the_averages_where_they_are_over_several_sets():
    sets = [record("CLIP", "acc1", v, dataset=name) for name, v in (("cifar10", 0.3), ("dtd", 0.5))]
    chart = metric_chart(collect([], sets))
    assert [panel.title for panel in chart.panels] == ["mean over sets: zero-shot"]
    assert "chance" not in chart.caption
    (bar,) = chart.panels[0].figure().axes[0].patches
    assert bar.get_width() == pytest.approx(0.4)
    (panel,) = metric_chart(collect([], sets[:1])).panels
    assert panel.title == "CIFAR-10 (test): top-1 accuracy"


def test_smooth_keeps_the_mean_and_leaves_nan_out():
    assert smooth(np.full(100, 3.0)).tolist() == [3.0] * 100
    values = np.arange(101.0)
    assert smooth(values)[50] == pytest.approx(50)
    values[50] = np.nan
    assert smooth(values)[50] == pytest.approx(50)
    assert smooth(np.array([1.0])).tolist() == [1.0]


def test_a_dark_figure_has_no_light_ink(tmp_path):
    svg = svg_of(training_chart(collection_of(tmp_path, ("CLIP",), 1)).figure())
    assert "#24292f" in svg
    assert "#24292f" not in darkened(svg)

"""Layer by layer and head by head: what is drawn, tabled and tested."""

import numpy as np
import pytest
from focus_records import HEADS, LAYERS, focus_records

from diffclip.evaluation.focus_names import detail
from diffclip.report.compare import estimate
from diffclip.report.focus_charts import BY_LAYER, focus_charts
from diffclip.report.focus_data import by_head, by_layer, focus_sets, layer_comparisons
from diffclip.report.focus_tables import folded_tables
from diffclip.report.series import collect

MODELS = {"CLIP": 0.0, "DiffCLIP": 0.2}


def collected(seeds=1, models=MODELS, **options):
    return collect([], *focus_records(models, range(seeds), hits=True, **options))


def chart(collection, kind):
    (found,) = focus_charts(collection)[kind]
    return found


def test_every_layer_is_tested_against_clip_and_corrected_for_all():
    collection = collected(models={"CLIP": 0.0, "DiffCLIP": 0.2, "DiffCLIP-dynamic": 0.0})
    (where,) = focus_sets(collection)
    told = layer_comparisons(collection, where._replace(metric="relevance_auroc"))
    assert list(told) == list(range(1, LAYERS + 1))
    every = [one for own in told.values() for one in own]
    assert {one.tests for one in every} == {2 * LAYERS}
    assert {one.basis for one in every} == {"items"}
    assert [one.series.label for one in told[1]] == ["DiffCLIP", "DiffCLIP-dynamic"]
    assert all(one.outcome == "higher" for one in every if one.series.label == "DiffCLIP")
    # over seeds where there are some
    over = layer_comparisons(collected(3), focus_sets(collected(3))[0]._replace(metric="attention_entropy"))
    assert {one.basis for own in over.values() for one in own} == {"seeds"}
    # of A1 there is no CLIP
    assert layer_comparisons(collection, where._replace(metric="A1_entropy")) == {
        layer: [] for layer in range(1, LAYERS + 1)
    }


def test_a_table_of_every_layer_with_its_tests():
    collection = collected()
    tables = {
        table.title.partition(",")[0]: table
        for table in folded_tables(collection)
        if "by layer" in table.title
    }
    table = tables["Object lift of attention"]
    assert table.columns == ["model", *(f"layer {layer}" for layer in range(1, LAYERS + 1))]
    assert [row.cells[0] for row in table.rows] == [
        "CLIP, seed 0",
        "DiffCLIP, seed 0",
        "DiffCLIP − CLIP",
        "uniform",
    ]
    assert "[" in table.rows[0].cells[1]
    assert "p " in table.rows[2].cells[1]
    assert table.notes == [
        f"p is from a paired test on the outcomes of the items; corrected for {LAYERS} comparisons (Holm)."
    ]
    assert [row.cells[0] for row in tables["Entropy of A1"].rows] == ["DiffCLIP, seed 0", "uniform"]


def test_lines_are_the_layers_means_with_seeds_and_intervals():
    collection = collected(3)
    layers = chart(collection, "layers")
    assert len(layers.panels) == len(BY_LAYER)
    assert layers.panels[0].title == "Area under ROC of relevance (uniform: 50 %)"
    assert [key.label for key in layers.legend] == ["CLIP", "DiffCLIP"]
    (axes,) = layers.panels[0].figure().axes
    (where,) = focus_sets(collection)
    found = by_layer(collection, where._replace(metric="relevance_auroc"))
    lines = [line for line in axes.lines if len(line.get_xdata()) == LAYERS]
    for series, line in zip(collection.series, lines, strict=True):
        assert line.get_xdata().tolist() == list(range(1, LAYERS + 1))
        means = [estimate(found[layer][series]).mean for layer in found]
        assert line.get_ydata() == pytest.approx(means)
    points = [line for line in axes.lines if line.get_linestyle() == "None"]
    assert len(points) == 2 * LAYERS
    assert len(axes.collections) == 2
    assert "95 % interval of the mean over 3 seeds" in layers.caption
    assert "range of two seeds" in chart(collected(2), "layers").caption
    assert "one training seed a model" in chart(collected(1), "layers").caption


def test_both_maps_of_differential_models_have_panels_of_their_own():
    pairs = chart(collected(), "pairs")
    assert [panel.title for panel in pairs.panels] == [
        "Object lift of A1 and of A2 (uniform: 1)",
        "Entropy of A1 and of A2 (uniform: 100 %)",
        "Top-ten share of A1 and of A2 (uniform: 16 %)",
        "Correlation of A1 with A2",
    ]
    (axes,) = pairs.panels[1].figure().axes
    lines = [line for line in axes.lines if len(line.get_xdata()) == LAYERS]
    assert [line.get_linestyle() for line in lines] == ["-", "--"]
    assert [key.label for key in pairs.legend] == ["DiffCLIP", "A1", "A2"]
    assert focus_charts(collected(models={"CLIP": 0.0}))["pairs"] == []


def test_a_heat_map_a_model_on_one_scale_about_a_uniform_map():
    collection = collected(2)
    heads = chart(collection, "heads")
    assert [panel.title for panel in heads.panels] == ["CLIP", "DiffCLIP"]
    limits = set()
    for panel, series in zip(heads.panels, collection.series, strict=True):
        axes, _ = panel.figure().axes
        (mesh,) = axes.collections
        (where,) = focus_sets(collection)
        own = by_head(collection, where._replace(metric="relevance_auroc"))
        expected = np.array(
            [
                [layers[layer][series][0].value for layer in range(1, LAYERS + 1)]
                for layers in own.values()
                if series in layers[1]
            ]
        )
        np.testing.assert_allclose(mesh.get_array().reshape(expected.shape), expected)
        assert expected.shape == (HEADS // (1 + (series.label != "CLIP")), LAYERS)
        limits.add((mesh.norm.vmin, mesh.norm.vcenter, mesh.norm.vmax))
    assert len(limits) == 1
    (low, centre, high) = limits.pop()
    assert centre == 0.5
    assert high - centre == pytest.approx(centre - low)
    assert "Of seed 0: heads of two trainings do not correspond." in heads.caption
    assert "Of seed" not in chart(collected(1), "heads").caption


def test_without_relevance_heads_are_shown_by_what_attention_lies_on():
    records, _ = focus_records(MODELS)
    records = [one for one in records if not one.metric.startswith("relevance")]
    heads = chart(collect([], records), "heads")
    assert "object lift of attention" in heads.caption
    assert focus_charts(collect([], records))["detectors"] == []


def test_a_missing_head_is_a_hole():
    records, _ = focus_records({"CLIP": 0.0})
    gone = detail("relevance_auroc", 2, 3)
    heads = chart(collect([], [one for one in records if one.metric != gone]), "heads")
    axes, _ = heads.panels[0].figure().axes
    assert np.isnan(np.ma.filled(axes.collections[0].get_array(), np.nan).reshape(HEADS, LAYERS)[2, 1])

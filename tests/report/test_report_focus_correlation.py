"""The correlation of A1 with A2 over training: read from runs that tell it and from runs that do not, saved, drawn."""

import json

import numpy as np
import pytest
from run_folders import make_run

from diffclip.report.correlations import correlation_chart
from diffclip.report.figures import lambda_charts
from diffclip.report.runs import read_run
from diffclip.report.save import save_results
from diffclip.report.series import collect


def changed(folder, change):
    """Each validation of a run, changed."""
    file = folder / "validation.jsonl"
    rows = [change(json.loads(line)) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def without(row):
    return {key: value for key, value in row.items() if key != "map_correlation"}


def test_a_run_tells_it_for_each_differential_tower(tmp_path):
    run = read_run(make_run(tmp_path / "run", "DiffCLIP-vision"))
    assert run.map_correlations == [
        {"visual": pytest.approx([0.9 - 0.2 * one - 0.1 * layer for layer in range(3)])} for one in (1, 2)
    ]
    assert all("map_correlation" not in row for row in run.validation)
    assert read_run(make_run(tmp_path / "plain", "CLIP")).map_correlations == [{}, {}]


@pytest.mark.parametrize(
    "change",
    [
        without,
        lambda row: row | {"map_correlation": 0.5},
        lambda row: row | {"map_correlation": {"visual": [0.5, None, 0.1], "text": "x"}},
    ],
)
def test_files_that_do_not_have_it_read_as_they_did(tmp_path, change):
    run = read_run(changed(make_run(tmp_path / "run"), change))
    assert run.map_correlations == [{}, {}]
    assert [row["score"] for row in run.validation] == [0.25, 0.5]
    assert correlation_chart(collect([run], [])) is None


def test_condensed_runs_keep_it(tmp_path):
    folders = [make_run(tmp_path / model, model) for model in ("CLIP", "DiffCLIP")]
    folders.append(changed(make_run(tmp_path / "old"), without))
    saved = save_results(folders, tmp_path / "saved")
    for folder in folders:
        before, after = read_run(folder), read_run(saved / folder.name)
        assert after.validation == before.validation
        assert len(after.map_correlations) == len(before.map_correlations)
        for one, other in zip(after.map_correlations, before.map_correlations, strict=True):
            assert one == {tower: pytest.approx(layers, rel=1e-4) for tower, layers in other.items()}


def test_the_chart_has_a_line_a_layer_and_averages_seeds(tmp_path):
    def shifted(row):
        told = {tower: [value - 0.1 for value in own] for tower, own in row["map_correlation"].items()}
        return row | {"map_correlation": told}

    runs = [
        read_run(make_run(tmp_path / "clip", "CLIP")),
        read_run(make_run(tmp_path / "s0", "DiffCLIP")),
        read_run(changed(make_run(tmp_path / "s1", "DiffCLIP", seed=1), shifted)),
        read_run(changed(make_run(tmp_path / "s2", "DiffCLIP", seed=2), without)),
        read_run(make_run(tmp_path / "v", "DiffCLIP-vision")),
    ]
    collection = collect(runs, [])
    chart = correlation_chart(collection)
    assert [panel.title for panel in chart.panels] == [
        "DiffCLIP: A1 with A2, vision tower",
        "DiffCLIP: A1 with A2, text tower",
        "DiffCLIP-vision: A1 with A2, vision tower",
    ]
    (axes,) = chart.panels[0].figure().axes
    lines = [line for line in axes.lines if line.get_marker() == "o"]
    assert len(lines) == 3
    assert lines[1].get_xdata().tolist() == [160, 320]
    assert lines[1].get_ydata() == pytest.approx([0.55, 0.35])
    assert axes.get_ylim()[0] < 0 < axes.get_ylim()[1]
    assert [key.label for key in chart.legend] == ["layer 1", "layer 3"]
    assert [one.name for one in lambda_charts(collection)] == ["lambda", "lambda_training", chart.name]


def test_below_0_and_a_single_validation_are_drawn(tmp_path):
    folder = make_run(tmp_path / "run")
    first = json.loads((folder / "validation.jsonl").read_text().splitlines()[0])
    first["map_correlation"]["visual"] = [-0.7, 0.1, 0.2]
    (folder / "validation.jsonl").write_text(json.dumps(first) + "\n")
    (axes,) = correlation_chart(collect([read_run(folder)], [])).panels[0].figure().axes
    assert axes.get_ylim()[0] < -0.7
    drawn = [line.get_ydata() for line in axes.lines if line.get_marker() == "o"]
    assert np.concatenate(drawn) == pytest.approx([-0.7, 0.1, 0.2])

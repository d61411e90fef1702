import json

import pytest
from study_folders import DIVERGED, make_study
from typer.testing import CliRunner

from diffclip.cli.main import app
from diffclip.errors import InputError
from diffclip.report.markdown import write_section
from diffclip.report.origin import limits
from diffclip.report.page import page
from diffclip.report.sources import read_sources
from diffclip.report.study_ablations import ablation_table
from diffclip.report.study_cost import cost_table
from diffclip.report.study_data import read_study_data, study_among
from diffclip.report.study_luck import luck_of
from diffclip.report.study_missing import progress
from diffclip.report.study_section import study_html, study_markdown
from diffclip.report.study_sweep import at_one_rate, edge_warnings, sweep_intro, sweep_table, tuning_sentence
from diffclip.report.study_verdict import verdict

LEVELS = {
    "CLIP": [0.60, 0.62, 0.61],
    "DiffCLIP": [0.50, 0.525, 0.51],
    "DiffCLIP-published": [0.40, 0.415, 0.42],
    "DiffCLIP-no-norm": [0.51, 0.50, None],
}
TRIED = {"CLIP": [0.1, 0.3, 0.2, 0.1, 0.1, 0.1], "DiffCLIP": [0.1, 0.1, 0.1, 0.1, 0.2, 0.4]}


def test_the_sweep_is_a_table_of_both_models_with_their_choices_in_bold(tmp_path):
    data = make_study(tmp_path / "s", LEVELS, TRIED)
    assert [row.cells for row in sweep_table(data).rows] == [
        ["0.0005", "10.00", "**30.00**", "20.00", "10.00", "10.00", "10.00", "−20.00"],
        ["0.001", "10.00", "10.00", "10.00", "10.00", "20.00", "**40.00**", "+30.00"],
    ]
    assert edge_warnings(data) == [
        "DiffCLIP's weight decay of 0.5 is the largest that was tried: a larger one may do better.",
    ]
    text = "".join(content for _, content in study_html(data))
    assert "<b>30.00</b>" in text
    assert "**" not in text


def test_what_a_learning_rate_of_its_own_brings_is_told(tmp_path):
    data = make_study(tmp_path / "s", {arm: LEVELS[arm][:1] for arm in ("CLIP", "DiffCLIP")}, TRIED)
    assert at_one_rate(data) == pytest.approx({0.0005: -0.2, 0.001: 0.3})
    said = tuning_sentence(data)
    assert (
        "is −20.00 at 0.0005 and +30.00 at 0.001 with the same learning rate for both, and +10.00 with"
        in said
    )
    assert said.endswith("All of this is from one seed, and how much of it is luck is not known.")
    # the recipe's is 0.0005
    assert "of one seed, DiffCLIP − CLIP is −20.0 points of validation score at the recipe's" in verdict(data)


def test_a_sweep_cut_short_chooses_nothing_and_no_run_counts(tmp_path):
    data = make_study(tmp_path / "s", LEVELS, {**TRIED, "DiffCLIP": [0.1, 0.1, None, None, None, None]})
    assert "The sweep is not finished: nothing is chosen yet." in sweep_intro(data)[0]
    assert [row.cells[4:] for row in sweep_table(data).rows] == [["10.00", "10.00", "–", "–"], ["–"] * 4]
    assert not data.trained
    assert "Finished: 8 of 12 runs of the sweep" in progress(data)


def test_what_is_not_run_is_said(tmp_path):
    data = make_study(tmp_path / "s", LEVELS)
    said = progress(data)
    assert "9 of 12 runs of the group models and 2 of 9 runs of the group ablations" in said
    assert "DiffCLIP-vision (seeds 0, 1 and 2)" in said
    assert "CLIP-half-heads (seeds 0, 1 and 2)" in said
    assert "DiffCLIP-no-norm (seed 2)" in said
    assert "Of the suite scenes, not measured:" in said
    assert "linear-probe on scenes-shapes" in said
    assert "retrieval on scenes," not in said
    assert sweep_table(data) is None
    assert sweep_intro(data)[0].startswith("No sweep")


def test_finished_runs_that_do_not_fit_are_told_loudly(tmp_path):
    make_study(tmp_path / "s", LEVELS, ablations=None)
    base = tmp_path / "s_base.yaml"
    base.write_text(base.read_text().replace("epochs: 2", "epochs: 3"))
    (tmp_path / "s" / "models" / "CLIP-s0").rename(tmp_path / "s" / "models" / "CLIP-s9")
    data = read_study_data(tmp_path / "s")
    assert not data.trained
    assert {one.name: one.reason for one in data.strays}["models/CLIP-s1"] == "started with epochs=2, not 3"
    assert verdict(data).startswith("Careful: 9 finished runs in this folder do not fit the study")
    text = "".join(content for _, content in study_html(data))
    assert "models/CLIP-s9: the study has no such run" in text
    file = tmp_path / "results.md"
    told = CliRunner().invoke(
        app, ["report", str(tmp_path / "s"), "--markdown", str(file), "--section", "study"]
    )
    assert "Left out: 9 finished runs here are not as the study is planned now" in told.stderr


def test_a_study_without_runs_has_a_report(tmp_path):
    data = make_study(tmp_path / "s", {})
    assert "no claim can be judged yet" in verdict(data)
    file = tmp_path / "results.md"
    write_section(file, "study", data.collection, tmp_path / "figures", study=data)
    assert "Not run yet: anything of the group models; anything of the group ablations." in file.read_text()
    assert "What has been run" in page(data.collection, "A study", study=data)


def test_what_one_seed_of_the_sweep_carries_is_told(tmp_path):
    levels = {"CLIP": [0.60, 0.62, 0.61], "DiffCLIP": [0.50, 0.55, 0.53]}
    data = make_study(
        tmp_path / "s", levels, {"CLIP": [0.2] * 6, "DiffCLIP": [0.21, 0.2, 0.2, 0.6, 0.5, 0.5]}
    )
    bound = luck_of(data).bound(1, 2)
    assert 0.01 < bound < 0.4
    said = tuning_sentence(data)
    assert (
        f"luck takes none of 2 such differences between equally good models beyond {100 * bound:.1f}" in said
    )
    assert said.endswith("it does not explain what is seen at 0.001.")
    assert (
        f"of one seed, where up to {100 * luck_of(data).bound(1):.1f} points may be luck, DiffCLIP"
        in verdict(data)
    )


def test_settings_that_diverged_are_never_chosen(tmp_path):
    tried = {"CLIP": TRIED["CLIP"], "DiffCLIP": [0.1, 0.1, 0.1, *[DIVERGED] * 3]}
    data = make_study(tmp_path / "s", LEVELS, tried)
    assert data.chosen["DiffCLIP"].lr == 0.0005
    assert [row.cells[-2:] for row in sweep_table(data).rows] == [["10.00", "−20.00"], ["diverged", "–"]]
    assert list(at_one_rate(data)) == [0.0005]
    assert "Diverged, and so finished without a score: DiffCLIP-lr0.001-wd0.1-s100 (step 7)" in progress(data)
    # of the sweep nothing is said that these would flatter
    assert "diverged" not in verdict(data)
    hopeless = make_study(tmp_path / "h", LEVELS, {"CLIP": TRIED["CLIP"], "DiffCLIP": [DIVERGED] * 6})
    assert hopeless.chosen == {}
    assert sweep_intro(hopeless)[0].endswith("All runs of DiffCLIP diverged, so that nothing can be chosen.")
    assert not hopeless.trained


def test_the_cost_is_told_relative_to_clip(tmp_path):
    ratios = {"CLIP": (1.0, 1.0, 1.0), "DiffCLIP": (1.2, 1.1, 1.3)}
    data = make_study(tmp_path / "s", LEVELS, parameters={"DiffCLIP": 1100}, ratios=ratios)
    table = cost_table(data)
    clip, diffclip, published = table.rows
    assert clip.cells[1:6] == ["1,000", "500.0", "1.00", "1,024", "60"]
    assert diffclip.cells[1:6] == ["1,100 (+10.000 %)", "600.0", "1.20 [1.10, 1.30]", "1,024 (0.0 %)", "60"]
    assert published.cells[2:4] == ["–", "–"]
    assert "2 runs went side by side, so that these seconds are rough" in " ".join(table.notes)
    assert "1.20 [1.10, 1.30]" in [row.cells[-2] for row in ablation_table(data).rows]


def test_memory_is_that_of_the_gpu_alone_where_it_was_measured(tmp_path):
    make_study(tmp_path / "s", LEVELS, ratios={"CLIP": (1.0, 1.0, 1.0), "DiffCLIP": (1.2, 1.1, 1.3)})
    file = tmp_path / "s" / "timing.json"
    told = json.loads(file.read_text())
    for arm, mebi in (("CLIP", 100), ("DiffCLIP", 110)):
        told["arms"][arm]["peak_memory"] = mebi * 2**20
    file.write_text(json.dumps(told))
    rows = cost_table(read_study_data(tmp_path / "s")).rows
    assert [row.cells[4] for row in rows] == ["100", "110 (+10.0 %)", "–"]


def test_times_of_runs_side_by_side_are_not_told(tmp_path):
    data = make_study(tmp_path / "s", LEVELS)
    for table in (cost_table(data), ablation_table(data)):
        assert not any("time a step" in column for column in table.columns)
        assert "Time a step has not been measured alone, so that nothing is said of it." in table.notes
    assert cost_table(data).rows[1].cells[2:4] == ["1,024 (0.0 %)", "60"]


def test_only_models_are_series(tmp_path):
    data = make_study(tmp_path / "s", LEVELS, TRIED)
    labels = ["CLIP", "DiffCLIP", "DiffCLIP (published init)"]
    assert [series.label for series in data.collection.series] == labels
    runs, _ = read_sources([tmp_path / "s"])
    assert sorted(run.name for run in runs) == sorted(run.name for _, run in data.collection.runs)


def test_the_command_writes_a_section_that_is_stable(tmp_path):
    # no models, so that a single figure is drawn
    make_study(tmp_path / "s", {"CLIP-half-heads": [0.5], "DiffCLIP-no-norm": [0.4]}, TRIED)
    file = tmp_path / "results.md"
    words = ["report", str(tmp_path / "s"), "--markdown", str(file), "--section", "study"]
    first = CliRunner().invoke(app, words)
    assert first.exit_code == 0, first.output
    before = file.read_bytes()
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn == {"study_ablations.png", "study_ablations.svg"}
    assert b"figures/study_ablations.svg" in before
    CliRunner().invoke(app, words)
    assert file.read_bytes() == before


def test_the_parts_of_a_section(tmp_path):
    few = {arm: LEVELS[arm][:1] for arm in ("CLIP", "DiffCLIP", "DiffCLIP-no-norm")}
    data = make_study(tmp_path / "s", few, TRIED)
    lines = "\n".join(study_markdown(data, {"ablations": "a figure"})).splitlines()
    assert [line for line in lines if line.startswith("### ")] == [
        *("### The paper's claims", "### Ablations", "### Learning rate and weight decay", "### Cost"),
        *("### What has been run", "### The models"),
    ]
    assert lines[0].startswith("**Verdict.** A small study, over 1 training seed.")
    assert "a figure" in lines


def test_a_study_is_reported_by_itself_and_not_saved(tmp_path):
    make_study(tmp_path / "s", LEVELS, ablations=None)
    with pytest.raises(InputError, match="report it by itself"):
        study_among([tmp_path / "s", tmp_path])
    refused = CliRunner().invoke(app, ["report", str(tmp_path / "s"), "--save", str(tmp_path / "saved")])
    assert isinstance(refused.exception, InputError) or refused.exit_code == 2
    assert not (tmp_path / "saved").exists()


def test_settings_that_were_swept_are_not_said_to_be_shared(tmp_path):
    data = make_study(tmp_path / "s", LEVELS, {arm: [0.1, 0.3, 0.1, 0.1, 0.1, 0.1] for arm in TRIED})
    assert "All runs share learning rate" in limits(data.collection)
    assert "All runs share" not in limits(data.collection, swept=True)

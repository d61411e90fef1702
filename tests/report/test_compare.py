"""What a report says of two models: whatever is recorded, and nothing that misleads."""

import re

import pandas as pd
import pytest
import yaml
from made_records import made, make_record, results_from, write_lines, write_study
from scipy import stats

from diffclip.cli.evaluate_table import show_records
from diffclip.errors import InputError
from diffclip.evaluation.records import read_records, records_table, write_records, write_table
from diffclip.evaluation.verdicts import write_verdicts
from diffclip.report.compare import cautions, headline, verdict_class, verdict_text
from diffclip.report.frame import read_results, results_of
from diffclip.report.page import build_report
from diffclip.report.printed import paper_gains

RECALL = ("retrieval", "flickr8k", "mean_recall")


def runs_of(model, values, seeds=None, measure=RECALL, **facts):
    """Records of one measure, a run each; without an interval over items, as mean recall."""
    seeds = range(len(values)) if seeds is None else seeds
    facts = {"low": None, "high": None, **facts}
    return [
        make_record({"model": model, "seed": seed, "weights": f"{model}-s{seed}"}, *measure, value, **facts)
        for seed, value in zip(seeds, values, strict=True)
    ]


A, B = [0.31, 0.35, 0.30, 0.36, 0.33], [0.29, 0.30, 0.31, 0.32, 0.28]


def test_arms_of_any_name_are_tested_against_the_first_or_the_named_one():
    records = records_table([*runs_of("mine", A), *runs_of("base", B)])
    first = results_of(records).verdicts.iloc[0]
    assert (first["arm"], first["against"]) == ("base", "mine")
    named = results_of(records, against="base").verdicts.iloc[0]
    assert (named["arm"], named["against"]) == ("mine", "base")
    assert named["p"] == pytest.approx(stats.ttest_rel(A, B).pvalue)
    assert headline(results_of(records, against="base")).startswith("mine against base in 1 comparison")
    with pytest.raises(InputError, match="unknown model --against 'bse': did you mean 'base'"):
        results_of(records, against="bse")
    with pytest.raises(InputError, match="no other model is measured"):
        results_of(records_table(runs_of("mine", A)), against="mine")
    assert build_report(results_of(records)).title == "mine and base"


@pytest.mark.parametrize(
    ("models", "pairs"),
    [
        (["my DiffCLIP", "基线_CLIP"], {"my DiffCLIP": "基线_CLIP"}),
        (
            ["CLIP-ViT-L-14", "CLIP-ViT-B-16", "DiffCLIP-ViT-S-16"],  # two CLIPs, of other sizes
            {"CLIP-ViT-B-16": "CLIP-ViT-L-14", "DiffCLIP-ViT-S-16": "CLIP-ViT-L-14"},
        ),
        (["CLIP-mine", "CLIP"], {"CLIP-mine": "CLIP"}),
        (["", "x|y"], {"x|y": ""}),
    ],
)
def test_models_without_a_clip_of_their_size_are_compared_with_the_first(models, pairs):
    rows = results_from([run for model in models for run in runs_of(model, A)]).verdicts
    assert dict(zip(rows["arm"], rows["against"], strict=True)) == pairs


def test_a_spec_beside_loose_records_declares_their_comparisons(tmp_path):
    fields = dict(zip(("task", "dataset", "metric"), RECALL, strict=True))
    spec = {"title": "Mine", "endpoints": {"secondary": [{**fields, "margin": 0.1}]}, "test": "welch"}
    write_table(tmp_path, [*runs_of("mine", A), *runs_of("base", B)])
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump({**spec, "contrasts": [["mine", "base"]]}))
    results = read_results([tmp_path])
    row = results.verdicts.iloc[0]
    assert row[["arm", "test", "verdict"]].tolist() == ["mine", "welch", "equivalent"]
    assert build_report(results).title == "Mine"
    (tmp_path / "spec.yaml").write_text("{title: Mine, contrast: [[mine, base]]}")
    with pytest.raises(InputError, match="unknown spec key 'contrast': did you mean 'contrasts'"):
        read_results([tmp_path])


def test_a_third_noisy_arm_changes_no_number_of_two_others():
    two = [*runs_of("CLIP", B), *runs_of("DiffCLIP", A)]
    three = [*two, *runs_of("CLIP-gated", [0.1, 0.9, 0.2, 0.8, 0.4])]
    rows = results_from(three).verdicts
    pd.testing.assert_series_equal(rows[rows["arm"] == "DiffCLIP"].iloc[0], results_from(two).verdicts.iloc[0],
                                   check_names=False)  # fmt: skip


def test_a_third_model_with_fewer_sets_leaves_two_others_their_average(capsys):
    facts = {"measure": ("six-tasks", "zero-shot", "average"), "of": ("cifar10", "pets")}
    sets = [("zero-shot", name, "acc1") for name in facts["of"]]
    two = [run for m, v in (("CLIP", B), ("DiffCLIP", A)) for run in runs_of(m, v, **facts)]
    two += [
        run for m, v in (("CLIP", B), ("DiffCLIP", A)) for one in sets for run in runs_of(m, v, measure=one)
    ]
    third = [*runs_of("DiffCLIP-vision", A, **facts | {"of": ("pets",)}),
             *runs_of("DiffCLIP-vision", A, measure=sets[1])]  # fmt: skip
    rows = results_from([*two, *third]).verdicts
    assert rows["arm"].tolist() == ["DiffCLIP", "DiffCLIP-vision", "DiffCLIP-vision"]
    assert rows["p_corrected"][0] == results_from(two).verdicts["p_corrected"][0]
    assert rows["label"][0] == "zero-shot top-1, mean of CIFAR-10 and Pets"
    show_records([*two, *third], headlines_only=True)
    assert "mean of CIFAR-10" in " ".join(capsys.readouterr().out.split())


def test_a_table_says_its_test_and_a_single_run_has_none():
    table = build_report(results_from([*runs_of("CLIP", [*B, 0.5]), *runs_of("DiffCLIP", A)])).table
    assert table.frame["runs"].tolist() == ["5 and 6"]
    assert "Welch's t test" in table.note
    assert "at the same rates and on the same test items" in table.note
    alone = results_from([*runs_of("CLIP", B), *runs_of("DiffCLIP", [0.5])])
    assert "One training run of DiffCLIP: another seed" in headline(alone)
    assert "p" not in build_report(alone).table.frame


def test_folds_and_chosen_rates_are_part_of_what_a_page_says_and_draws(tmp_path):
    names = ("CLIP", "DiffCLIP", "CLIP@5e-4", "DiffCLIP@5e-4")
    seeds = {fold: [fold, fold + 3] for fold in range(3)}  # seed s of fold f is trained with seed 3 s + f
    write_table(tmp_path, [
        run for name in names for fold, own in seeds.items()
        for run in runs_of(name, [0.300 + 0.001 * fold * ("D" in name), 0.301], own, fold=fold, split="fold")
    ])  # fmt: skip
    fields = dict(zip(("task", "dataset", "metric"), RECALL, strict=True))
    spec = {"endpoints": {"secondary": [{**fields, "margin": 0.05}]}, "unit": "fold", "pooled": True}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump({**spec, "contrasts": [["DiffCLIP", "CLIP"]]}))
    report = build_report(read_results([tmp_path]))
    assert report.table.frame["runs"].tolist() == ["3 pairs"]
    assert "a choice of their rates included, on the test items of their folds" in report.table.note
    axes = report.charts[0].figure.axes[0]
    assert [len(line.get_xdata()) for line in axes.lines if line.get_marker() == "."] == [3]
    assert axes.texts[1].get_text().endswith("equivalent within 5 points, pooled")


@pytest.mark.parametrize(
    ("facts", "other", "words"),
    [
        ({"data": "cc3m"}, {"data": "cc12m"}, "training data cc12m and cc3m"),
        ({"steps": 500}, {"steps": 5000}, "training steps 5,000 and 500"),
        ({"init": "matched"}, {"init": "published"}, "init published and matched"),
        ({"count": 1000}, {"count": 500}, "test items 500 and 1,000"),
    ],
)
def test_one_line_names_how_the_records_of_two_arms_differ(facts, other, words):
    results = results_from([*runs_of("CLIP", B, **facts), *runs_of("DiffCLIP", A, **other)])
    line = f"DiffCLIP and CLIP: their records differ in {words} (mean recall, Flickr8k)."
    assert cautions(results) == [line]
    assert build_report(results).notes == [line]


def test_models_at_chance_are_no_headline():
    results, facts = [], {"chance": 0.082, "count": 60}
    for seeds in (3, 1):
        arms = {"CLIP": [0.084, 0.083, 0.081], "DiffCLIP": [0.086, 0.084, 0.080]}
        results.append(results_from([run for m, v in arms.items() for run in runs_of(m, v[:seeds], **facts)]))
    assert headline(results[0]).endswith("in 1 comparison: not shown above chance in 1.")
    row = results[0].verdicts.iloc[0]
    assert verdict_text(row) == "undecided (neither shown above chance)"
    arms = {"CLIP": [0.08, 0.081], "DiffCLIP": [0.08, 0.082], "CLIP-gated": [0.08]}
    results.append(results_from([run for m, v in arms.items() for run in runs_of(m, v, **facts)]))
    assert "not shown above chance in 1, one run of CLIP-gated in 1" in headline(results[-1])
    for one in results:
        assert cautions(one) == ["Not learned, as no model is shown above chance: mean recall, Flickr8k."]
    better = results_from(
        [*runs_of("CLIP", [0.08, 0.081, 0.082], **facts), *runs_of("DiffCLIP", [0.09] * 3, **facts)]
    )
    row = better.verdicts.iloc[0]
    assert verdict_text(row) == "better (neither shown above chance)"
    assert verdict_class(row) == ""


def test_the_gain_of_the_paper_stands_beside_the_same_set_and_metric_alone():
    probe, average = ("linear-probe", "cifar10", "acc1"), ("six-tasks", "few-shot", "average")
    records = []
    for model, values in (("CLIP", B), ("DiffCLIP", A)):
        records += runs_of(model, values, measure=("zero-shot", "cifar10", "acc1"))
        records += runs_of(model, values, measure=probe)
        records += runs_of(model, values, measure=average, of=("caltech101", "cifar10"))
    table = build_report(results_from(records)).table.frame.set_index("measure")["paper"]
    assert table["linear probe top-1, CIFAR-10"] == "CC3M +0.4, CC12M −1.3"
    assert set(table.drop("linear probe top-1, CIFAR-10")) == {"–"}
    sets = "caltech101 dtd pets flowers sun397 fgvc_aircraft cifar10 cifar100 food101"
    nine = frozenset(sets.split())
    assert paper_gains()["six-tasks", "few-shot", "average", nine, "DiffCLIP", "CLIP"] == {
        "CC3M": 0.7,
        "CC12M": 0.1,
    }
    captions = ("retrieval", "captions", "mean_recall")
    scenes = results_from([*runs_of("CLIP", B, measure=captions), *runs_of("DiffCLIP", A, measure=captions)])
    assert "paper" not in build_report(scenes).table.frame


def test_a_study_is_tested_as_declared_and_its_verdicts_stand_beside_it(tmp_path):
    levels = {"CLIP": 0.4, "DiffCLIP": 0.4, "DiffCLIP-vision": 0.4}
    results = read_results([write_study(tmp_path, levels)])
    rows = results.verdicts
    assert rows["primary"].sum() == 1
    assert rows["p_corrected"][0] == rows["p"][0]
    assert len(rows) == 2 * rows["label"].nunique()
    text = headline(results)
    assert text.startswith("DiffCLIP − CLIP on validation score, Flickr8k, the primary endpoint: ")
    assert re.search(r"\(95 % interval .*, 3 pairs, p = 0\.\d+\): better\.$", text)
    write_verdicts(tmp_path, rows)
    stored = pd.read_csv(tmp_path / "verdicts.csv")
    assert stored["verdict"].tolist() == rows["verdict"].tolist()
    with pytest.raises(InputError, match=r"spec.yaml declares the contrasts"):
        read_results([tmp_path], against="CLIP")


def test_a_study_that_is_not_whole_is_unfinished_in_every_row(tmp_path):
    folder = write_study(tmp_path, {"CLIP": 0.4, "DiffCLIP": 0.45}, seeds=range(4))
    file = folder / "results.jsonl"
    write_records(file, [record for record in read_records(file) if record.seed != 3])
    ends = [{"arm": model, "seed": seed} for model in ("CLIP", "DiffCLIP") for seed in range(4)]
    rest = {"group": "models", "lr": 1e-3, "weight_decay": 0.1, "score": 0.1, "steps": 1, "seconds": 1.0}
    ends = [{"run": f"models/{end['arm']}-s{end['seed']}", "diverged": None, **end, **rest} for end in ends]
    ends[-1]["diverged"] = 9
    write_lines(folder / "runs.jsonl", ends)
    assert "DiffCLIP-s3 diverged): better" in headline(read_results([folder]))
    write_lines(folder / "runs.jsonl", ends[:6])
    unfinished = read_results([folder])
    assert headline(unfinished).endswith("2 runs to come): unfinished.")
    assert set(unfinished.verdicts["verdict"]) == {"unfinished"}
    report = build_report(unfinished)
    assert set(report.table.frame["verdict"].str.split(" \\(").str[0]) == {"unfinished"}
    assert set(report.table.frame["p"].str.replace(" (primary)", "")) == {"–"}


def test_linear_probes_that_did_not_converge_are_told_at_the_top():
    protocol = "lgssl; 12 of 36 fits stopped after 1000 iterations; ties count against"
    probes = [
        run.model_copy(update={"protocol": protocol})
        for model, values in (("CLIP", B), ("DiffCLIP", A), ("CLIP@5e-4", B))
        for run in runs_of(model, values, measure=("linear-probe", "cifar10", "acc1"))
    ]  # CLIP repeats the runs of CLIP@5e-4
    told = "Linear probe: 120 of 360 fits stopped before they converged."
    assert cautions(results_from(probes))[0] == told


def test_models_of_each_setting_are_compared_with_the_clip_of_it():
    records = [
        record.model_copy(update={"weights": f"{rate}/{record.model}-s{record.seed}/checkpoints/best"})
        for rate, level in (("low", 0.4), ("high", 0.5))
        for record in made({"CLIP": level, "DiffCLIP": level})
    ]
    rows = results_from(records).verdicts
    pairs = {(f"DiffCLIP ({rate}/DiffCLIP)", f"CLIP ({rate}/CLIP)") for rate in ("low", "high")}
    assert set(zip(rows["arm"], rows["against"], strict=True)) == pairs
    assert set(rows["n_a"]) == {3}
    prefixed = {
        f"flickr8k_cpu-{name}": level for name, level in {"CLIP": 0.2, "DiffCLIP-vision": 0.3}.items()
    }
    rows = results_from(made(prefixed)).verdicts
    assert set(rows["arm"] + " " + rows["against"]) == {"flickr8k_cpu-DiffCLIP-vision flickr8k_cpu-CLIP"}


def test_models_with_different_training_data_are_not_compared():
    records = [
        record.model_copy(update={"weights": f"{name}-{data}.pt"})
        for data, level in (("cc3m", 0.2), ("cc12m", 0.4))
        for name in ("CLIP", "DiffCLIP")
        for record in made({f"{name}-ViT-B-16": level}, seeds=(0,))
    ]
    results = results_from([*records, *made({"DiffCLIP-vision-ViT-B-16": 0.3}, seeds=(0,))])
    rows = results.verdicts
    pairs = {
        (f"DiffCLIP-ViT-B-16 (DiffCLIP-{data}.pt)", f"CLIP-ViT-B-16 (CLIP-{data}.pt)")
        for data in ("cc3m", "cc12m")
    }
    assert set(zip(rows["arm"], rows["against"], strict=True)) == pairs
    assert cautions(results)[0].startswith("DiffCLIP-vision-ViT-B-16: not compared, as no CLIP of its size")

"""Families of comparisons: one test, one correction, one verdict for each contrast and measure."""

import numpy as np
import pandas as pd
import pytest
from made_records import make_record
from pydantic import ValidationError
from scipy import stats
from statsmodels.stats.multitest import multipletests

from diffclip.errors import InputError
from diffclip.evaluation.family import Family
from diffclip.evaluation.records import records_table
from diffclip.evaluation.verdicts import compute_verdicts, read_verdicts, write_verdicts

RECALL = {"task": "retrieval", "dataset": "flickr8k", "metric": "mean_recall"}
PAIR = ("DiffCLIP", "CLIP")


def frame_of(arms, seeds=None, **facts):
    """Records of mean recall: the values of each arm, by default of seeds 0, 1, …"""
    fields = RECALL | facts
    records = []
    for model, values in arms.items():
        own = (seeds or {}).get(model, range(len(values)))
        for seed, value in zip(own, values, strict=True):
            about = {"model": model, "seed": seed, "weights": f"{model}-s{seed}"}
            rest = {name: fact for name, fact in fields.items() if name not in RECALL}
            measure = (fields[name] for name in RECALL)
            records.append(make_record(about, *measure, value, **({"low": None, "high": None} | rest)))
    return records_table(records)


def family_of(*secondary, **settings):
    return Family(endpoints={"secondary": secondary}, **{"contrasts": [PAIR], **settings})


def one(frame, margin=None, contrast=PAIR, **settings):
    """The verdict of one contrast at mean recall."""
    family = family_of(RECALL | {"margin": margin}, contrasts=[contrast], **settings)
    return compute_verdicts(frame, family).iloc[0]


A, B = [0.31, 0.35, 0.30, 0.36, 0.33], [0.29, 0.30, 0.31, 0.32, 0.28]


def test_same_seeds_are_paired_as_in_scipy():
    row = one(frame_of({"DiffCLIP": A, "CLIP": B}), margin=0.05)
    direct = stats.ttest_rel(A, B)
    assert row[["test", "n_a", "n_b"]].tolist() == ["paired", 5, 5]
    assert row["p"] == row["p_corrected"] == pytest.approx(direct.pvalue)
    assert (row["low"], row["high"]) == pytest.approx(tuple(direct.confidence_interval()))
    sides = [
        stats.ttest_rel(np.add(A, shift), B, alternative=side).pvalue
        for shift, side in ((0.05, "greater"), (-0.05, "less"))
    ]
    assert row["p_equivalent"] == pytest.approx(max(sides))


def test_other_seeds_are_compared_by_welch_over_all_runs():
    seeds = {"CLIP": [5, 6, 7, 8, 9]}
    row = one(frame_of({"DiffCLIP": A, "CLIP": [*B]}, seeds))
    assert row[["test", "n_a", "n_b"]].tolist() == ["welch", 5, 5]
    assert row["p"] == pytest.approx(stats.ttest_ind(A, B, equal_var=False).pvalue)
    uneven = one(frame_of({"DiffCLIP": A[:2], "CLIP": B}))
    assert uneven[["test", "n_a", "n_b"]].tolist() == ["welch", 2, 5]
    assert uneven["value"] - uneven["value_against"] == pytest.approx(uneven["difference"])


def test_a_single_run_is_not_tested():
    row = one(frame_of({"DiffCLIP": [0.5], "CLIP": B}))
    assert row["verdict"] == "one run of DiffCLIP"
    assert row[["n_a", "n_b"]].tolist() == [1, 5]
    assert row[["p", "p_corrected", "low", "p_equivalent"]].isna().all()
    assert one(frame_of({"DiffCLIP": [0.5], "CLIP": [0.4]}))["verdict"] == "one run each"
    assert one(frame_of({"CLIP": B}))["verdict"] == "not measured for DiffCLIP"


def test_a_declared_paired_test_says_which_runs_it_leaves_out():
    row = one(frame_of({"DiffCLIP": A, "CLIP": [*B, 0.9]}), test="paired")
    assert row["note"] == "1 run without a partner left out"
    assert row["value"] - row["value_against"] == pytest.approx(row["difference"])
    assert row[["n_a", "n_b"]].tolist() == [5, 5]


def test_equal_values_are_equivalent_and_a_constant_difference_decides():
    assert one(frame_of({"DiffCLIP": A, "CLIP": A}))["verdict"] == "equivalent"
    shifted = [value + 0.03 for value in B]
    row = one(frame_of({"DiffCLIP": shifted, "CLIP": B}))
    assert row["verdict"] == "better"
    assert row["difference"] == pytest.approx(0.03)
    assert one(frame_of({"DiffCLIP": B, "CLIP": shifted}))["verdict"] == "worse"


def test_equivalence_needs_a_margin():
    values = {"DiffCLIP": [0.301, 0.299, 0.300], "CLIP": [0.300, 0.301, 0.299]}
    assert one(frame_of(values))["verdict"] == "undecided"
    assert one(frame_of(values), margin=0.01)["verdict"] == "equivalent"
    row = one(frame_of(values), margin={"share": 0.05})
    assert row["verdict"] == "equivalent"
    assert row["margin"] == pytest.approx(0.05 * 0.3)
    at_chance = one(frame_of(values, chance=0.299, count=60), margin=0.01)
    assert (at_chance["verdict"], at_chance["at_chance"]) == ("equivalent", True)


@pytest.mark.parametrize(
    ("metric", "word"),
    [("attack_success", "worse"), ("entropy", "higher"), ("deletion_auc", "worse"), ("acc1", "better")],
)
def test_a_larger_value_is_not_always_better(metric, word):
    frame = frame_of({"DiffCLIP": [0.40, 0.41, 0.42], "CLIP": [0.20, 0.21, 0.23]}, metric=metric)
    row = compute_verdicts(frame, family_of(RECALL | {"metric": metric})).iloc[0]
    assert row["verdict"] == word


def test_the_primary_row_is_not_corrected_and_all_others_are_corrected_together():
    arms = {"DiffCLIP": A, "CLIP": B, "CLIP-gated": [0.3, 0.31, 0.3, 0.33, 0.31]}
    few_shot = RECALL | {"task": "few-shot", "metric": "acc1"}
    frame = pd.concat(
        [frame_of(arms), frame_of({**arms, "DiffCLIP": A[::-1]}, **few_shot)], ignore_index=True
    )
    primary = RECALL | {"arm": "DiffCLIP", "against": "CLIP", "margin": 0.1}
    endpoints = {"primary": primary, "secondary": [few_shot | {"margin": 0.1}]}
    family = Family(endpoints=endpoints, contrasts=[PAIR, ("CLIP-gated", "CLIP")], test="welch")
    rows = compute_verdicts(frame, family)
    assert rows["primary"].tolist() == [True, False, False, False]
    assert rows["p_corrected"][0] == rows["p"][0]
    assert rows["p_corrected"][1:].tolist() == pytest.approx(multipletests(rows["p"][1:], method="holm")[1])
    alone = [one(frame, margin=0.1, contrast=pair, test="welch") for pair in family.contrasts]
    assert rows["p_equivalent"][0] == pytest.approx(alone[0]["p_equivalent"])
    assert rows["p_equivalent"][1] >= alone[1]["p_equivalent"]
    unfinished = compute_verdicts(frame, family, finished=False)
    assert set(unfinished["verdict"]) == {"unfinished"}
    assert unfinished[["p", "p_corrected", "p_equivalent"]].isna().all(axis=None)


def test_a_pooled_residual_says_so():
    arms = {"DiffCLIP": A[:2], "CLIP": B[:2], "CLIP-gated": [0.30, 0.34]}
    family = family_of(RECALL, contrasts=[PAIR, ("CLIP-gated", "CLIP")], pooled=True)
    row = compute_verdicts(frame_of(arms), family).iloc[0]
    table = np.array(list(arms.values()))
    residual = table - table.mean(0) - table.mean(1, keepdims=True) + table.mean()
    error = np.sqrt((residual**2).sum() / 2 * 2 / 2)
    assert row["pooled"]
    assert row["p"] == pytest.approx(2 * stats.t.sf(abs(row["difference"]) / error, 2))
    unpaired = frame_of(arms, {"CLIP": [5, 6]})
    row = compute_verdicts(unpaired, family.model_copy(update={"test": "welch"})).iloc[0]
    assert (row["test"], row["pooled"]) == ("pooled", True)


def test_a_pooled_paired_test_leaves_out_the_runs_that_its_note_names():
    arms = {"DiffCLIP": A, "CLIP": [*B, 0.9], "CLIP-gated": [0.30, 0.34, 0.31]}
    family = family_of(RECALL, contrasts=[PAIR, ("CLIP-gated", "CLIP")], pooled=True, test="paired")
    rows = compute_verdicts(frame_of(arms), family)
    assert rows["note"].tolist() == ["1 run without a partner left out", "3 runs without a partner left out"]
    assert (rows["value"] - rows["value_against"]).tolist() == pytest.approx(rows["difference"].tolist())


def test_chance_is_that_of_the_two_arms_and_an_arm_that_is_missing_is_not_at_chance():
    parts = [
        frame_of({model: values}, chance=chance, count=60)
        for model, values, chance in (("DiffCLIP", A, 0.3), ("CLIP", B, 0.4), ("other", A, 0.8))
    ]
    frame = pd.concat(parts, ignore_index=True)
    row = one(frame)
    assert row["chance"] == pytest.approx(0.35)
    assert row["at_chance"]
    assert not one(frame, contrast=("DiffCLIP", "none"))["at_chance"]
    assert not one(frame, contrast=("nobody", "none"))["at_chance"]


def test_a_change_between_studies_is_paired_over_seeds():
    studies = {"k0": (A, B), "k16": (B[::-1], [0.1, 0.15, 0.12, 0.18, 0.11])}
    parts = [frame_of({"DiffCLIP": a, "CLIP": b}).assign(study=name) for name, (a, b) in studies.items()]
    frame = pd.concat(parts, ignore_index=True)
    primary = RECALL | {"arm": "DiffCLIP", "against": "CLIP", "study": "k16 - k0"}
    family = Family(endpoints={"primary": primary})
    row = compute_verdicts(frame, family).iloc[0]
    changes = [np.subtract(studies["k16"][arm], studies["k0"][arm]) for arm in (0, 1)]
    assert row["p"] == pytest.approx(stats.ttest_rel(*changes).pvalue)
    assert row["study"] == "k16 - k0"
    with pytest.raises(InputError, match="measured with study k0 and k16: give the endpoint a study"):
        one(frame)
    assert one(frame[frame["study"] == "k0"])["study"] == "k0"


def test_folds_are_runs_or_units():
    parts = [frame_of({"DiffCLIP": A, "CLIP": B}).assign(fold=fold) for fold in range(3)]
    parts[1]["value"] += 0.1
    frame = pd.concat(parts, ignore_index=True)
    assert one(frame)["n_a"] == 15
    by_fold = one(
        frame.assign(value=frame["value"] + 0.01 * frame["fold"] * (frame["model"] == "CLIP")), unit="fold"
    )
    assert by_fold["n_a"] == 3


def test_an_arm_against_itself_and_outcomes_that_are_no_numbers_are_refused():
    with pytest.raises(ValidationError, match="CLIP is compared with itself"):
        Family(contrasts=[("CLIP", "CLIP")])
    frame = frame_of({"DiffCLIP": A, "CLIP": B})
    frame.loc[0, "value"] = np.inf
    with pytest.raises(InputError, match="must be finite numbers"):
        one(frame)


def test_verdicts_are_read_as_written_and_refused_for_other_results(tmp_path):
    frame = frame_of({"DiffCLIP": A, "CLIP": B}, of=("x", "y"))
    rows = compute_verdicts(frame, family_of(RECALL | {"margin": 0.01}))
    for name in ("results.jsonl", "spec.yaml"):
        (tmp_path / name).write_text("first")
    write_verdicts(tmp_path, rows)
    back = read_verdicts(tmp_path)
    columns = ["arm", "of", "p_corrected", "n_a", "verdict", "primary", "test", "differs"]
    pd.testing.assert_frame_equal(back[columns], rows[columns], check_dtype=False, rtol=1e-4)
    for name, words in (("results.jsonl", "of these results"), ("spec.yaml", "of this spec")):
        (tmp_path / name).write_text("second")
        with pytest.raises(InputError, match=f"is not {words}: run diffclip report"):
            read_verdicts(tmp_path)
        (tmp_path / name).write_text("first")

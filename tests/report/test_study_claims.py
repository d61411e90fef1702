import statistics

import pytest
from study_folders import make_study

from diffclip.evaluation.significance import (
    SeedSummary,
    SeedTest,
    detectable_difference,
    holm,
    student_p,
    student_quantile,
)
from diffclip.report.study_claims import judge_of, judged_claims, not_measured
from diffclip.report.study_data import read_study_data
from diffclip.report.study_paper import FOCUSED, PAIRS, PARAMETERS, printed_difference
from diffclip.report.study_section import claims_table
from diffclip.report.study_verdict import verdict

CLIP = [0.30, 0.32, 0.31]


def claim(data, treated, task):
    return next(one for one in judged_claims(data) if (one.claim.treated, one.claim.task) == (treated, task))


def test_a_difference_is_paired_by_seed_and_corrected_over_the_claims(tmp_path):
    data = make_study(tmp_path / "s", {"CLIP": CLIP, "DiffCLIP": [0.33, 0.36, 0.36]}, ablations=False)
    one = claim(data, "DiffCLIP", "image retrieval")
    differences = [0.03, 0.04, 0.05]
    error = statistics.stdev(differences) / 3**0.5
    p = student_p(0.04 / error, 2)
    assert one.test.difference.mean == pytest.approx(0.04)
    assert one.test.difference.low == pytest.approx(0.04 - student_quantile(2) * error)
    assert one.test.p == pytest.approx(p)
    assert one.test.detectable == pytest.approx(detectable_difference(statistics.stdev(differences), 3))
    # image and text retrieval and zero-shot have equal numbers here
    assert one.p == pytest.approx(holm([p] * 3)[0])
    assert one.word == "holds" if one.p < 0.05 else "cannot be told"


def test_each_word_of_the_verdict_is_reached(tmp_path):
    level = {"CLIP": CLIP, "DiffCLIP": [0.40, 0.421, 0.412]}
    assert claim(make_study(tmp_path / "up", level, ablations=False), "DiffCLIP", "zero-shot").word == "holds"
    level["DiffCLIP"] = [0.20, 0.221, 0.212]
    down = make_study(tmp_path / "down", level, ablations=False)
    assert claim(down, "DiffCLIP", "zero-shot").word == "does not hold"
    assert "These do not hold: DiffCLIP better than CLIP at image retrieval, where it is worse" in verdict(
        down
    )
    level["DiffCLIP"] = [0.30, 0.29, 0.35]
    unclear = make_study(tmp_path / "unclear", level, ablations=False)
    assert claim(unclear, "DiffCLIP", "zero-shot").word == "cannot be told"
    assert "Of 3 claims to be better among these, 3 point the paper's way" in verdict(unclear)
    bound = 100 * claim(unclear, "DiffCLIP", "zero-shot").test.detectable
    assert f"found in 80 % of cases is {bound:.1f} points" in verdict(unclear)


def test_about_as_good_needs_the_whole_interval_above_the_margin(tmp_path):
    level = {"CLIP": CLIP, "DiffCLIP": [0.40, 0.42, 0.41], "DiffCLIP-vision": [0.401, 0.419, 0.41]}
    data = make_study(tmp_path / "s", level, ablations=False)
    one = claim(data, "DiffCLIP-vision", "image retrieval")
    assert one.margin == pytest.approx(0.05 * 0.41)
    assert (one.word, one.p) == ("holds", None)
    level["DiffCLIP-vision"] = [0.30, 0.32, 0.311]
    worse = make_study(tmp_path / "worse", level, ablations=False)
    assert claim(worse, "DiffCLIP-vision", "image retrieval").word == "does not hold"
    level["DiffCLIP-vision"] = [0.36, 0.44, 0.41]
    wide = make_study(tmp_path / "wide", level, ablations=False)
    assert claim(wide, "DiffCLIP-vision", "image retrieval").word == "cannot be told"


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(0.0, 0.04, "holds"), (0.06, 0.1, "does not hold"), (0.0, 0.06, "cannot be told")],
)
def test_time_holds_beneath_its_margin(low, high, word):
    test = SeedTest(SeedSummary(3, (low + high) / 2, 0.01, low, high), 0.5, 0.1)
    assert judge_of("time", test, None, 0.05) == word


def test_costs_are_shares_of_clips(tmp_path):
    data = make_study(
        tmp_path / "s",
        {"CLIP": CLIP, "DiffCLIP": CLIP},
        ablations=False,
        parameters={"CLIP": 10_000, "DiffCLIP": 10_011},
        seconds={"CLIP": [1.0, 2.0, 1.0], "DiffCLIP": [1.2, 2.6, 1.25]},
    )
    parameters, time = claim(data, "DiffCLIP", "parameters"), claim(data, "DiffCLIP", "time a step")
    assert parameters.test.difference.mean == pytest.approx(0.0011)
    assert parameters.word == "does not hold"
    assert time.test.difference.mean == pytest.approx((0.2 + 0.3 + 0.25) / 3)
    assert time.word == "does not hold"


def test_times_of_runs_side_by_side_decide_nothing(tmp_path):
    folder = tmp_path / "s"
    seconds = {"CLIP": [1.0, 2.0, 1.0], "DiffCLIP": [1.2, 2.6, 1.25]}
    make_study(folder, {"CLIP": CLIP, "DiffCLIP": CLIP}, ablations=False, seconds=seconds)
    for file in folder.glob("models/*/cost.json"):
        file.write_text(file.read_text().replace('"side_by_side": 1', '"side_by_side": 2'))
    time = claim(read_study_data(folder), "DiffCLIP", "time a step")
    assert (time.word, time.margin) == ("cannot be told", None)
    assert time.test.difference.mean == pytest.approx((0.2 + 0.3 + 0.25) / 3)


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_tell_nothing_but_what_is_counted(tmp_path, seeds):
    levels = {"CLIP": CLIP[:seeds], "DiffCLIP": [0.5, 0.53][:seeds]}
    data = make_study(tmp_path / "s", levels, ablations=False)
    told = {one.claim.kind: one.word for one in judged_claims(data)}
    assert told == {"better": "cannot be told", "parameters": "holds", "time": "cannot be told"}
    assert all(one.test.p is None and one.test.difference.low is None for one in judged_claims(data))
    assert "Nothing can be told yet about which model is better: it takes 3 seeds" in verdict(data)


def test_only_seeds_that_both_have_are_compared(tmp_path):
    data = make_study(
        tmp_path / "s", {"CLIP": [0.3, None, 0.4], "DiffCLIP": [None, 0.9, 0.5]}, ablations=False
    )
    one = claim(data, "DiffCLIP", "image retrieval")
    assert (one.seeds, one.test.difference.mean) == (1, pytest.approx(0.1))


def test_a_spread_that_was_not_seen_tells_nothing_of_luck(tmp_path):
    data = make_study(tmp_path / "s", {"CLIP": [0.25] * 3, "DiffCLIP": [0.5] * 3}, ablations=False)
    one = claim(data, "DiffCLIP", "image retrieval")
    assert (one.word, one.p, one.test.detectable) == ("cannot be told", None, None)
    assert "DiffCLIP and CLIP cannot be told apart at any of 3 tasks" in verdict(data)


def test_a_seed_that_was_measured_otherwise_does_not_decide_the_measure(tmp_path):
    levels = {"CLIP": CLIP, "DiffCLIP": [0.33, 0.36, 0.36]}
    make_study(tmp_path / "s", levels, ablations=False)
    for arm in levels:
        file = tmp_path / "s" / "models" / f"{arm}-s0" / "results.jsonl"
        file.write_text(file.read_text().replace("retrieval; made up", "retrieval; otherwise"))
    one = claim(read_study_data(tmp_path / "s"), "DiffCLIP", "image retrieval")
    assert (one.seeds, one.test.difference.mean) == (2, pytest.approx(0.045))


def test_claims_without_numbers_are_named(tmp_path):
    data = make_study(tmp_path / "s", {"CLIP": CLIP, "DiffCLIP": CLIP}, ablations=False)
    assert {PAIRS, FOCUSED, "few-shot"} <= {one.task for one in not_measured(data)}
    assert "Not measured here: DiffCLIP better than CLIP (linear probing)" in " ".join(
        claims_table(data).notes
    )


def test_the_papers_differences_are_as_printed():
    assert printed_difference("DiffCLIP", "CLIP", "text retrieval") == "+1.8 (CC3M), +0.7 (CC12M)"
    assert printed_difference("DiffCLIP-dynamic", "DiffCLIP", "zero-shot") == "+0.8 (CC12M)"
    # Section 4.6: +0.1 over CLIP, where DiffCLIP has +0.3 (Table 1)
    assert printed_difference("DiffCLIP-vision", "DiffCLIP", "linear probing") == "−0.2 (CC12M)"
    assert printed_difference("DiffCLIP", "CLIP", PAIRS) == "+5.7 (CC12M)"
    assert printed_difference("DiffCLIP", "CLIP", PARAMETERS).startswith("+0.003 %")
    assert printed_difference("DiffCLIP", "CLIP", FOCUSED) == "–"

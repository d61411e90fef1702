import statistics

import pytest
from study_folders import make_study

from diffclip.evaluation.significance import detectable_difference, holm, student_p, student_quantile
from diffclip.report.study_claims import judged_claims, not_measured
from diffclip.report.study_claims_table import claims_table
from diffclip.report.study_cost import cost_table
from diffclip.report.study_data import read_study_data
from diffclip.report.study_paper import FOCUSED, PAIRS, PARAMETERS, printed_difference
from diffclip.report.study_verdict import verdict

CLIP = [0.30, 0.32, 0.31]


def claim(data, treated, task):
    return next(one for one in judged_claims(data) if (one.claim.treated, one.claim.task) == (treated, task))


def test_a_difference_is_paired_by_seed_and_corrected_over_the_claims(tmp_path):
    data = make_study(tmp_path / "s", {"CLIP": CLIP, "DiffCLIP": [0.33, 0.36, 0.36]}, ablations=None)
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
    assert claim(make_study(tmp_path / "up", level, ablations=None), "DiffCLIP", "zero-shot").word == "holds"
    level["DiffCLIP"] = [0.20, 0.221, 0.212]
    down = make_study(tmp_path / "down", level, ablations=None)
    assert claim(down, "DiffCLIP", "zero-shot").word == "does not hold"
    assert "These do not hold: DiffCLIP better than CLIP at image retrieval, where it is worse" in verdict(
        down
    )
    level["DiffCLIP"] = [0.30, 0.29, 0.35]
    unclear = make_study(tmp_path / "unclear", level, ablations=None)
    assert claim(unclear, "DiffCLIP", "zero-shot").word == "cannot be told"
    assert "Of 3 claims to be better among these, 3 point the paper's way" in verdict(unclear)


def test_about_as_good_needs_the_whole_interval_above_the_margin(tmp_path):
    level = {"CLIP": CLIP, "DiffCLIP": [0.40, 0.42, 0.41], "DiffCLIP-vision": [0.401, 0.419, 0.41]}
    data = make_study(tmp_path / "s", level, ablations=None)
    one = claim(data, "DiffCLIP-vision", "image retrieval")
    # what is above the chance of five in a hundred
    assert one.margin == pytest.approx(0.05 * (0.41 - 0.05))
    assert (one.word, one.p) == ("holds", None)
    assert "Of 3 claims to be about as good, each judged by itself, 3 hold." in verdict(data)
    level["DiffCLIP-vision"] = [0.30, 0.32, 0.311]
    worse = make_study(tmp_path / "worse", level, ablations=None)
    assert claim(worse, "DiffCLIP-vision", "image retrieval").word == "does not hold"
    level["DiffCLIP-vision"] = [0.36, 0.44, 0.41]
    wide = make_study(tmp_path / "wide", level, ablations=None)
    assert claim(wide, "DiffCLIP-vision", "image retrieval").word == "cannot be told"


def test_what_could_have_been_detected_is_told_after_the_correction(tmp_path):
    levels = {"CLIP": CLIP, "DiffCLIP": [0.30, 0.29, 0.35]}
    data = make_study(tmp_path / "s", levels, ablations=None)
    spread = claim(data, "DiffCLIP", "zero-shot").test.difference.sd
    corrected = 100 * detectable_difference(spread, 3, 0.05 / 3)
    assert corrected > 1.5 * 100 * detectable_difference(spread, 3)
    said = verdict(data)
    assert (
        "after the correction for 3 tests, the smallest true difference that so many seeds would have" in said
    )
    assert f"found in 80 % of cases is {corrected:.1f} points" in said
    assert claims_table(data).rows[0].cells[6] == f"{corrected:.1f}"


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(1.0, 1.04, "holds"), (1.06, 1.1, "does not hold"), (1.0, 1.06, "cannot be told")],
)
def test_time_is_judged_by_what_was_measured_alone(tmp_path, low, high, word):
    ratio = (low + high) / 2
    ratios = {"CLIP": (1.0, 1.0, 1.0), "DiffCLIP": (ratio, low, high)}
    data = make_study(tmp_path / "s", {"CLIP": CLIP, "DiffCLIP": CLIP}, ablations=None, ratios=ratios)
    time = claim(data, "DiffCLIP", "time a step")
    assert (time.word, time.seeds) == (word, 0)
    table = claims_table(data)
    assert table.rows[-1].cells[7] == "9 rounds"
    assert "arms in turns; medians over 9 rounds" in " ".join(cost_table(data).notes)
    assert "over 3 training seeds" in verdict(data)


def test_without_a_measurement_alone_nothing_is_said_of_time(tmp_path):
    data = make_study(tmp_path / "s", {"CLIP": CLIP, "DiffCLIP": CLIP}, ablations=None)
    assert "time a step" not in {one.claim.task for one in judged_claims(data)}
    assert "Time a step has not been measured alone, so that nothing is said of it." in verdict(data)


def test_parameters_are_shares_of_clips(tmp_path):
    parameters = {"CLIP": 10_000, "DiffCLIP": 10_011}
    data = make_study(tmp_path / "s", {"CLIP": CLIP, "DiffCLIP": CLIP}, ablations=None, parameters=parameters)
    one = claim(data, "DiffCLIP", "parameters")
    assert one.test.difference.mean == pytest.approx(0.0011)
    assert one.word == "does not hold"


def of_classes(folder, classes):
    """Read the study again, its zero-shot of so many classes."""
    for file in folder.glob("models/*/results.jsonl"):
        file.write_text(file.read_text().replace("zero-shot; made up", f"zero-shot; {classes} classes"))
    return read_study_data(folder)


def test_a_claim_about_a_model_at_chance_cannot_be_told(tmp_path):
    levels = {"CLIP": CLIP, "DiffCLIP": [0.31, 0.33, 0.322], "DiffCLIP-vision": [0.32, 0.331, 0.33]}
    make_study(tmp_path / "s", levels, ablations=None)
    data = of_classes(tmp_path / "s", 3)
    one = claim(data, "DiffCLIP", "zero-shot")
    assert one.other.chance == pytest.approx(1 / 3)
    assert (one.p, one.word) == (pytest.approx(holm([one.test.p] * 3)[0]), "cannot be told")
    assert claim(data, "DiffCLIP-vision", "zero-shot").word == "cannot be told"
    assert claim(data, "DiffCLIP-vision", "image retrieval").other.chance == pytest.approx(0.05)
    assert claim(data, "DiffCLIP-vision", "image retrieval").word == "holds"
    cells = {tuple(row.cells[:2]): row.cells[2:4] for row in claims_table(data).rows}
    assert cells["DiffCLIP better than CLIP", "zero-shot"] == [
        "cannot be told (CLIP is at chance)",
        "31.0 (33.3)",
    ]
    assert "CLIP itself cannot be told from chance at zero-shot classification." in verdict(data)


def test_a_model_above_chance_is_better_than_one_at_chance(tmp_path):
    make_study(tmp_path / "s", {"CLIP": CLIP, "DiffCLIP": [0.50, 0.521, 0.511]}, ablations=None)
    one = claim(of_classes(tmp_path / "s", 3), "DiffCLIP", "zero-shot")
    assert (one.at_chance, one.word) == (True, "holds")


def test_pictures_that_checkpoints_were_chosen_on_are_named(tmp_path):
    levels = {"CLIP": CLIP, "DiffCLIP": CLIP}
    make_study(tmp_path / "s", levels, ablations=None)
    chosen = "are measured on the pictures that each run's checkpoint was chosen on"
    assert chosen not in " ".join(claims_table(read_study_data(tmp_path / "s")).notes)
    for file in (tmp_path / "s").glob("models/*/results.jsonl"):
        lines = file.read_text().splitlines()
        retrieval = [line.replace('"test"', '"val"') for line in lines if '"retrieval"' in line]
        file.write_text("\n".join([*retrieval, *lines[len(retrieval) :]]) + "\n")
    notes = " ".join(claims_table(read_study_data(tmp_path / "s")).notes)
    assert f"Image retrieval and text retrieval {chosen}" in notes


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_tell_nothing_but_what_is_counted(tmp_path, seeds):
    levels = {"CLIP": CLIP[:seeds], "DiffCLIP": [0.5, 0.53][:seeds]}
    data = make_study(tmp_path / "s", levels, ablations=None)
    told = {one.claim.kind: one.word for one in judged_claims(data)}
    assert told == {"better": "cannot be told", "parameters": "holds"}
    assert all(one.test.p is None and one.test.difference.low is None for one in judged_claims(data))
    assert "Nothing can be told yet about which model is better: it takes 3 seeds" in verdict(data)


def test_only_seeds_that_both_have_are_compared(tmp_path):
    data = make_study(
        tmp_path / "s", {"CLIP": [0.3, None, 0.4], "DiffCLIP": [None, 0.9, 0.5]}, ablations=None
    )
    one = claim(data, "DiffCLIP", "image retrieval")
    assert (one.seeds, one.test.difference.mean) == (1, pytest.approx(0.1))


def test_a_spread_that_was_not_seen_tells_nothing_of_luck(tmp_path):
    data = make_study(tmp_path / "s", {"CLIP": [0.25] * 3, "DiffCLIP": [0.5] * 3}, ablations=None)
    one = claim(data, "DiffCLIP", "image retrieval")
    assert (one.word, one.p, one.test.detectable) == ("cannot be told", None, None)
    assert "DiffCLIP and CLIP cannot be told apart at any of 3 tasks" in verdict(data)


def test_a_seed_that_was_measured_otherwise_does_not_decide_the_measure(tmp_path):
    levels = {"CLIP": CLIP, "DiffCLIP": [0.33, 0.36, 0.36]}
    make_study(tmp_path / "s", levels, ablations=None)
    for arm in levels:
        file = tmp_path / "s" / "models" / f"{arm}-s0" / "results.jsonl"
        file.write_text(file.read_text().replace("retrieval; made up", "retrieval; otherwise"))
    one = claim(read_study_data(tmp_path / "s"), "DiffCLIP", "image retrieval")
    assert (one.seeds, one.test.difference.mean) == (2, pytest.approx(0.045))


def test_claims_without_numbers_are_named(tmp_path):
    data = make_study(tmp_path / "s", {"CLIP": CLIP, "DiffCLIP": CLIP}, ablations=None)
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

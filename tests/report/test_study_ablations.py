import statistics

import numpy as np
import pytest
from study_folders import DIVERGED, make_study

from diffclip.evaluation.significance import detectable_difference, holm, paired_by_seed, student_quantile
from diffclip.report.study_ablations import ablated, ablation_table
from diffclip.report.study_dots import ablation_chart
from diffclip.report.study_init import init_rows, init_sentence, init_table
from diffclip.report.study_luck import luck_of
from diffclip.report.study_missing import progress
from diffclip.report.study_ranking import ranking
from diffclip.report.study_verdict import verdict

LEVELS = {
    "CLIP": [0.60, 0.62, 0.61],
    "DiffCLIP": [0.50, 0.525, 0.51],
    "DiffCLIP-vision": [0.55, 0.56, 0.58],
    "DiffCLIP-published": [0.40, 0.415, 0.42],
    "DiffCLIP-one-map": [0.70, 0.725, 0.708],
    "DiffCLIP-no-norm": [0.51, 0.50, 0.53],
    "CLIP-half-heads": [0.61, 0.60, 0.63],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_study(tmp_path_factory.mktemp("study") / "s", LEVELS)


def by_seed(arm):
    return dict(enumerate(LEVELS[arm]))


def test_arms_go_from_clip_to_diffclip_and_then_one_factor_away(data):
    assert [row.arm for row in ablated(data)] == [
        *("CLIP", "DiffCLIP-one-map", "DiffCLIP"),
        *("DiffCLIP-vision", "DiffCLIP-published", "DiffCLIP-no-norm", "CLIP-half-heads"),
    ]


def test_each_arm_is_compared_with_what_it_is_one_factor_away_from(data):
    rows = {row.arm: row for row in ablated(data)}
    assert rows["CLIP"].own is None
    assert (rows["DiffCLIP-published"].against, rows["DiffCLIP-published"].factor) == (
        "DiffCLIP",
        "init published",
    )
    assert (rows["CLIP-half-heads"].against, rows["DiffCLIP"].against) == ("CLIP", "CLIP")
    tests = {
        arm: paired_by_seed(by_seed(arm), by_seed(row.against)) for arm, row in rows.items() if row.against
    }
    expected = dict(zip(tests, holm([test.p for test in tests.values()]), strict=True))
    for arm, test in tests.items():
        assert rows[arm].own.difference.mean == pytest.approx(test.difference.mean)
        assert rows[arm].p == pytest.approx(expected[arm])
    assert rows["DiffCLIP-no-norm"].to_clip.difference.mean == pytest.approx(
        statistics.fmean(LEVELS["DiffCLIP-no-norm"]) - 0.61
    )
    cells = next(row.cells for row in ablation_table(data).rows if row.cells[0] == "DiffCLIP-no-norm")
    assert cells[1:3] == ["DiffCLIP: without the head norm", "51.33"]


def test_the_best_is_named_with_what_it_can_be_told_from(data):
    (said,) = ranking(data)
    assert said.startswith(
        "By validation score, DiffCLIP-one-map has the highest mean of all 7 arms, 71.10 % over 3 training seeds"
    )
    assert "CLIP has 61.00 % (+10.10 points)" in said
    assert "It can be told from " in said
    assert "Holm over its 6 comparisons" in said
    assert "The highest of 7 was chosen by the very scores" in said
    # one map leaves nothing to subtract
    assert "Of those with differential attention DiffCLIP-vision is highest: 56.33 %" in said


def test_the_figure_has_a_row_an_arm(data):
    axes = ablation_chart(data).figure().axes[0]
    assert len(axes.get_yticklabels()) == 7
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert len(dots) == 7
    assert sorted(dots[0].get_xdata()) == [*LEVELS["CLIP"][:1], 0.61, 0.62]


def test_a_seed_that_not_all_have_does_not_rank(tmp_path):
    levels = {"CLIP": [0.5, 0.1, 0.1], "DiffCLIP": [0.4, 0.4, 0.4], "DiffCLIP-no-norm": [0.3, None, None]}
    data = make_study(tmp_path / "s", levels)
    enough, order = ranking(data)
    assert enough.startswith(
        "By validation score, DiffCLIP has the highest mean of the 2 arms with 3 seeds or more"
    )
    assert "DiffCLIP-no-norm" not in enough
    assert order.startswith(
        "Which arm does best cannot be told from seed 0, the only one that all 3 arms have."
    )
    assert "CLIP 50.00 %, DiffCLIP 40.00 % and DiffCLIP-no-norm 30.00 %" in order
    assert (
        "Of those with differential attention DiffCLIP is highest: 40.00 %, with as many parameters" in order
    )
    assert "highest mean" not in order


def test_one_seed_of_the_ablations_has_no_p_and_no_best(tmp_path):
    few = {
        arm: own if arm.startswith(("CLIP", "DiffCLIP-v")) or arm == "DiffCLIP" else own[:1]
        for arm, own in LEVELS.items()
    }
    data = make_study(tmp_path / "s", few)
    one = next(row for row in ablated(data) if row.arm == "DiffCLIP-no-norm")
    assert (one.own.difference.n, one.own.p, one.own.difference.low, one.p) == (1, None, None, None)
    table = ablation_table(data)
    assert table.columns[3] == "in seed 0, which all have"
    cells = {row.cells[0]: row.cells for row in table.rows}
    assert cells["CLIP"][2:4] == ["61.00", "60.00"]
    assert cells["DiffCLIP-no-norm"][2:6] == ["51.00", "51.00", "+1.00", "–"]
    assert any("With fewer than 3 seeds nothing is tested" in note for note in table.notes)
    bound = luck_of(data).bound(1)
    assert f"differ by up to {100 * bound:.1f} points in seed 0" in ranking(data)[1]
    assert "Filled: seed 0, which all have" in ablation_chart(data).caption


def test_arms_with_other_settings_than_what_they_are_against_are_named(tmp_path):
    tried = {"CLIP": [0.1, 0.3, 0.1, 0.1, 0.1, 0.1], "DiffCLIP": [0.1, 0.1, 0.1, 0.1, 0.1, 0.3]}
    few = {arm: own[:1] for arm, own in LEVELS.items()}
    notes = " ".join(ablation_table(make_study(tmp_path / "s", few, tried)).notes)
    assert (
        "CLIP and CLIP-half-heads have CLIP's learning rate and weight decay, the others DiffCLIP's" in notes
    )
    same = make_study(tmp_path / "t", few, tried | {"DiffCLIP": tried["CLIP"]})
    assert "of these settings too" not in " ".join(ablation_table(same).notes)


def test_luck_is_what_arms_and_seeds_leave(tmp_path):
    levels = {"CLIP": [0.5, 0.6, 0.4], "DiffCLIP": [0.4, 0.5, 0.6], "DiffCLIP-vision": [0.3, 0.5, 0.7]}
    data = make_study(tmp_path / "s", levels)
    scores = np.array(list(levels.values()))
    left = scores - scores.mean(0) - scores.mean(1, keepdims=True) + scores.mean()
    sd = ((left**2).sum() / 4) ** 0.5
    luck = luck_of(data)
    assert (luck.freedom, luck.sd) == (4, pytest.approx(sd))
    assert luck.bound(1) == pytest.approx(student_quantile(4) * sd * 2**0.5)
    assert luck.bound(4) == pytest.approx(luck.bound(1) / 2)
    assert luck.bound(1, 5) == pytest.approx(student_quantile(4, 0.01) * sd * 2**0.5)
    # arms of one seed tell nothing of the spread
    more = make_study(tmp_path / "m", levels | {"DiffCLIP-published": [0.9]})
    assert luck_of(more).freedom == 4
    assert luck_of(more).sd == pytest.approx(sd)
    assert luck_of(make_study(tmp_path / "t", {"CLIP": [0.5], "DiffCLIP": [0.4]})) is None


CHAIN = {
    "CLIP-as-DiffCLIP": {
        "change": {"model": "CLIP"},
        "settings": "DiffCLIP",
        "factor": "DiffCLIP's settings",
        "against": "CLIP",
    },
    "DiffCLIP-bare": {"change": {"model": "DiffCLIP-bare"}, "factor": "λ", "against": "CLIP-as-DiffCLIP"},
    "DiffCLIP-no-factor": {
        "change": {"model": "DiffCLIP-no-factor"},
        "factor": "the head norm",
        "against": "DiffCLIP-bare",
    },
}
ENDED = {
    "CLIP": {"change": {"model": "CLIP"}},
    "DiffCLIP": {
        "change": {"model": "DiffCLIP"},
        "factor": "the factor (1 − λ_init)",
        "against": "DiffCLIP-no-factor",
    },
}
STEPS = {
    "CLIP": [0.60, 0.62, 0.61],
    "DiffCLIP": [0.50, 0.525, 0.51],
    "CLIP-as-DiffCLIP": [0.58, 0.59, 0.61],
    "DiffCLIP-bare": [0.40, 0.41, 0.43],
    "DiffCLIP-no-factor": [0.45, 0.44, 0.46],
}
TRIED = {"CLIP": [0.1, 0.3, 0.1, 0.1, 0.1, 0.1], "DiffCLIP": [0.1, 0.1, 0.1, 0.1, 0.1, 0.3]}


def test_the_chain_goes_from_clip_to_diffclip_a_factor_at_a_time(tmp_path):
    data = make_study(tmp_path / "s", STEPS, TRIED, CHAIN, models=ENDED)
    rows = ablated(data)
    steps = ["CLIP", "CLIP-as-DiffCLIP", "DiffCLIP-bare", "DiffCLIP-no-factor", "DiffCLIP"]
    assert [row.arm for row in rows] == steps
    assert [row.against for row in rows] == [None, *steps[:-1]]
    table = ablation_table(data)
    assert table.columns[5:7] == ["difference to CLIP", "difference to CLIP-as-DiffCLIP"]
    cells = table.rows[-1].cells
    assert cells[1] == "DiffCLIP-no-factor: the factor (1 − λ_init)"
    assert cells[3].startswith("+6.17 [")
    assert cells[5].startswith("−9.83 [")
    assert cells[6].startswith("−8.17 [")
    assert table.rows[0].cells[6] == "–"


def test_an_arm_that_repeats_another_has_no_row_and_its_place_in_the_chain_is_taken(tmp_path):
    data = make_study(tmp_path / "s", STEPS, TRIED | {"DiffCLIP": TRIED["CLIP"]}, CHAIN, models=ENDED)
    assert data.repeats == {"CLIP-as-DiffCLIP": "CLIP"}
    rows = {row.arm: row for row in ablated(data)}
    assert list(rows) == ["CLIP", "DiffCLIP-bare", "DiffCLIP-no-factor", "DiffCLIP"]
    assert rows["DiffCLIP-bare"].against == "CLIP"
    assert "difference to CLIP-as-DiffCLIP" not in ablation_table(data).columns
    assert (
        "CLIP-as-DiffCLIP would repeat CLIP with the settings that were chosen, and so is not run"
        in progress(data)
    )


def test_what_ablations_could_have_shown_is_told_after_their_correction(data):
    spreads = [row.own.difference.sd for row in ablated(data) if row.own]
    found = sorted(100 * detectable_difference(sd, 3, 0.05 / 6) for sd in spreads)
    assert (
        f"At 5 % ÷ 6, the strictest step of that, so many seeds find a true difference of {found[0]:.1f} to "
        f"{found[-1]:.1f} points"
    ) in " ".join(ablation_table(data).notes)


def test_equal_scores_have_no_best(tmp_path):
    three = {arm: [0.5, 0.6, 0.55] for arm in ("CLIP", "DiffCLIP", "DiffCLIP-no-norm")}
    (said,) = ranking(make_study(tmp_path / "s", three))
    assert said == (
        "By validation score, of all 3 arms CLIP, DiffCLIP and DiffCLIP-no-norm share the highest mean, 55.00 % over 3 "
        "training seeds."
    )


def test_a_difference_without_spread_is_told_apart_from_what_was_tested(tmp_path):
    levels = {
        "CLIP": [0.5, 0.6, 0.55],
        "DiffCLIP": [0.4, 0.5, 0.45],
        "DiffCLIP-no-norm": [0.3, 0.45, 0.33],
    }
    (said,) = ranking(make_study(tmp_path / "s", levels))
    assert said.startswith("By validation score, CLIP has the highest mean of all 3 arms, 55.00 %")
    assert "DiffCLIP-no-norm (paired by seed). Its difference to DiffCLIP is the same in every seed" in said
    (same,) = ranking(
        make_study(
            tmp_path / "t",
            {arm: levels[arm] for arm in ("CLIP", "DiffCLIP")} | {"DiffCLIP-no-norm": [0.2, 0.3, 0.25]},
        )
    )
    assert "paired by seed" not in same
    assert "Its difference to DiffCLIP and DiffCLIP-no-norm is the same in every seed" in same


def test_a_run_that_diverged_is_named_and_left_out(tmp_path):
    levels = {
        "CLIP": [0.60, 0.62, 0.61],
        "DiffCLIP": [0.50, 0.525, DIVERGED],
        "DiffCLIP-no-norm": [DIVERGED] * 3,
        "CLIP-half-heads": [0.61, 0.60, 0.63],
    }
    data = make_study(tmp_path / "s", levels)
    assert list(data.scores("DiffCLIP")) == [0, 1]
    assert not [one for one in data.missing if one.arm in levels]
    assert "DiffCLIP-no-norm" not in [row.arm for row in ablated(data)]
    said = verdict(data)
    assert said.startswith(
        "Careful: DiffCLIP (seed 2) diverged: what is said of it is over the seeds that are left, which flatters it. "
        "DiffCLIP-no-norm diverged in every seed that was run, so that nothing is said of it."
    )
    assert "DiffCLIP seed 2 (step 7), DiffCLIP-no-norm seed 0 (step 7)" in progress(data)
    best, order = ranking(data)
    assert best.startswith("By validation score, CLIP-half-heads has the highest mean of the 2 arms")
    assert order.startswith(
        "Which arm does best cannot be told from seeds 0 and 1, the only ones that all 3 arms"
    )


def test_without_ablations_there_is_no_part_of_them(tmp_path):
    data = make_study(tmp_path / "s", LEVELS, ablations=None)
    assert (ablated(data), ablation_table(data), ranking(data), ablation_chart(data)) == (
        [],
        None,
        [],
        None,
    )


def test_the_init_is_published_minus_matched(data):
    row = init_rows(data)[0]
    test = paired_by_seed(by_seed("DiffCLIP-published"), by_seed("DiffCLIP"))
    gap = paired_by_seed(by_seed("DiffCLIP-published"), by_seed("CLIP"))
    assert row.init.difference.mean == pytest.approx(test.difference.mean)
    assert row.init.p == pytest.approx(test.p)
    assert row.share == pytest.approx(test.difference.mean / gap.difference.mean)
    # the score, both recalls and zero-shot
    assert row.p == pytest.approx(holm([test.p] * 4)[0])
    assert f"{100 * row.share:.0f} % of the published gap" in init_sentence(data)
    table = init_table(data)
    assert table.title == "DiffCLIP: published init against matched"
    assert [len(row.cells) for row in table.rows] == [len(table.columns)] * 4


def test_the_init_is_told_over_the_seeds_that_all_three_have(tmp_path):
    data = make_study(tmp_path / "s", LEVELS | {"DiffCLIP-published": [None, 0.415, 0.42]})
    row = init_rows(data)[0]
    assert row.levels["CLIP"] == pytest.approx((0.62 + 0.61) / 2)
    assert row.init.difference.mean == pytest.approx(row.levels["published"] - row.levels["matched"])
    assert "so few seeds do not tell" in init_sentence(data)


def test_an_init_that_points_against_the_gap_has_no_share(tmp_path):
    data = make_study(tmp_path / "s", LEVELS | {"DiffCLIP-published": [0.52, 0.545, 0.54]})
    assert init_rows(data)[0].share < 0
    assert "does not explain the gap" in init_sentence(data)
    assert "[" not in init_sentence(data, brief=True)


def test_no_share_of_a_gap_that_may_be_luck(tmp_path):
    levels = LEVELS | {"DiffCLIP-published": [0.62, 0.50, 0.65]}
    data = make_study(tmp_path / "s", levels)
    assert init_rows(data)[0].share is None
    assert "the gap itself cannot be told from luck" in init_sentence(data)

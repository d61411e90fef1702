import statistics

import pytest
from study_folders import make_study

from diffclip.evaluation.significance import holm, paired_by_seed, student_quantile
from diffclip.report.study_ablations import ablated, ablation_table
from diffclip.report.study_dots import ablation_chart
from diffclip.report.study_init import init_rows, init_sentence, init_table
from diffclip.report.study_pairs import luck_of
from diffclip.report.study_ranking import ranking

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
    assert said.startswith("DiffCLIP-one-map does best at this size, 71.10 % over 3 training seeds")
    assert "CLIP has 61.00 % (+10.10 points)" in said
    assert "It can be told from " in said
    assert "Holm over its 6 comparisons" in said
    assert "The best of 7 was chosen by the very scores" in said
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
    assert enough.startswith("By validation score, of the arms with seeds enough, DiffCLIP does best")
    assert "DiffCLIP-no-norm" not in enough
    assert order.startswith(
        "Which variant does best cannot be told from seed 0, the only one that all 3 arms have."
    )
    assert "CLIP 50.00 %, DiffCLIP 40.00 % and DiffCLIP-no-norm 30.00 %" in order
    assert (
        "Of those with differential attention DiffCLIP is highest: 40.00 %, with as many parameters" in order
    )
    assert "does best at this size" not in order


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
    bound = luck_of(data, 1)
    assert f"differ by up to {100 * bound:.1f} points in seed 0" in ranking(data)[1]
    assert "Filled: seed 0, which all have" in ablation_chart(data).caption


def test_arms_with_other_settings_than_what_they_are_against_are_named(tmp_path):
    tried = {"CLIP": [0.1, 0.3, 0.1, 0.1, 0.1, 0.1], "DiffCLIP": [0.1, 0.1, 0.1, 0.1, 0.1, 0.3]}
    few = {arm: own[:1] for arm, own in LEVELS.items()}
    notes = " ".join(ablation_table(make_study(tmp_path / "s", few, tried)).notes)
    assert (
        "DiffCLIP-one-map and DiffCLIP have DiffCLIP's learning rate and weight decay, CLIP its own" in notes
    )
    same = make_study(tmp_path / "t", few, tried | {"DiffCLIP": tried["CLIP"]})
    assert "of these settings too" not in " ".join(ablation_table(same).notes)


def test_luck_is_the_pooled_spread_of_differences_to_clip(tmp_path):
    data = make_study(
        tmp_path / "s",
        {"CLIP": [0.5, 0.5, 0.5], "DiffCLIP": [0.4, 0.5, 0.6], "DiffCLIP-vision": [0.3, 0.5, 0.7]},
    )
    expected = student_quantile(4) * ((0.1**2 + 0.2**2) / 2) ** 0.5
    assert luck_of(data, 1) == pytest.approx(expected)
    assert luck_of(data, 4) == pytest.approx(expected / 2)
    assert luck_of(make_study(tmp_path / "t", {"CLIP": [0.5], "DiffCLIP": [0.4]}), 1) is None


def test_without_ablations_there_is_no_part_of_them(tmp_path):
    data = make_study(tmp_path / "s", LEVELS, ablations=False)
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

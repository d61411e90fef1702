import statistics

import pytest
from study_folders import make_study

from diffclip.evaluation.significance import holm, paired_by_seed
from diffclip.report.study_ablations import ablated, ablation_table, best_sentence
from diffclip.report.study_dots import ablation_chart
from diffclip.report.study_init import init_rows, init_sentence, init_tables

LEVELS = {
    "CLIP": [0.60, 0.62, 0.61],
    "DiffCLIP": [0.50, 0.525, 0.51],
    "DiffCLIP-vision": [0.55, 0.56, 0.58],
    "DiffCLIP-published": [0.40, 0.415, 0.42],
    "DiffCLIP-one-map": [0.70, 0.725, 0.708],
    "DiffCLIP-no-norm": [0.51, 0.50, 0.53],
    "CLIP-published": [0.61, 0.60, 0.63],
}


@pytest.fixture
def data(tmp_path):
    return make_study(tmp_path / "s", LEVELS)


def by_seed(arm):
    return dict(enumerate(LEVELS[arm]))


def test_arms_go_from_clip_to_diffclip_and_then_one_factor_away(data):
    assert [row.arm for row in ablated(data)] == [
        *("CLIP", "DiffCLIP-one-map", "DiffCLIP"),
        *("DiffCLIP-vision", "DiffCLIP-published", "DiffCLIP-no-norm", "CLIP-published"),
    ]


def test_each_arm_is_compared_with_what_it_is_one_factor_away_from(data):
    rows = {row.arm: row for row in ablated(data)}
    assert rows["CLIP"].own is None
    assert (rows["DiffCLIP-published"].against, rows["DiffCLIP-published"].factor) == (
        "DiffCLIP",
        "init published",
    )
    assert (rows["CLIP-published"].against, rows["DiffCLIP"].against) == ("CLIP", "CLIP")
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
    said = best_sentence(data)
    assert said.startswith("DiffCLIP-one-map does best at this size, 71.10 % over 3 training seeds")
    assert "CLIP has 61.00 % (+10.10 points)" in said
    assert "It can be told from " in said
    assert "Holm over its 6 comparisons" in said
    assert "The best of 7 was chosen by the very scores" in said


def test_the_figure_has_a_row_an_arm(data):
    axes = ablation_chart(data).figure().axes[0]
    assert len(axes.get_yticklabels()) == 7
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert sorted(dots[0].get_xdata()) == [*LEVELS["CLIP"][:1], 0.61, 0.62]


def test_a_seed_that_not_all_have_does_not_rank(tmp_path):
    levels = {"CLIP": [0.5, 0.1, 0.1], "DiffCLIP": [0.4, 0.4, 0.4], "DiffCLIP-no-norm": [0.3, None, None]}
    data = make_study(tmp_path / "s", levels)
    assert best_sentence(data).startswith("CLIP does best at this size, 50.00 % over 1 training seed.")
    assert "So few seeds do not tell whether its lead is luck." in best_sentence(data)
    assert "Of those with differential attention DiffCLIP does best, 40.00 %" in best_sentence(data)


def test_without_ablations_there_is_no_part_of_them(tmp_path):
    data = make_study(tmp_path / "s", LEVELS, ablations=False)
    assert (ablated(data), ablation_table(data), best_sentence(data), ablation_chart(data)) == (
        [],
        None,
        "",
        None,
    )


def test_the_init_is_published_minus_matched(data):
    row = init_rows(data, "DiffCLIP")[0]
    test = paired_by_seed(by_seed("DiffCLIP-published"), by_seed("DiffCLIP"))
    gap = paired_by_seed(by_seed("DiffCLIP-published"), by_seed("CLIP"))
    assert row.init.difference.mean == pytest.approx(test.difference.mean)
    assert row.init.p == pytest.approx(test.p)
    assert row.share == pytest.approx(test.difference.mean / gap.difference.mean)
    # the score, both recalls and zero-shot
    assert row.p == pytest.approx(holm([test.p] * 4)[0])
    assert f"{100 * row.share:.0f} % of the published gap" in init_sentence(data)
    clip = init_rows(data, "CLIP")[0]
    assert clip.init.difference.mean == pytest.approx(statistics.fmean(LEVELS["CLIP-published"]) - 0.61)
    assert [table.title for table in init_tables(data)] == [
        f"{model}: published init against matched" for model in ("DiffCLIP", "CLIP")
    ]


def test_no_share_of_a_gap_that_may_be_luck(tmp_path):
    levels = LEVELS | {"DiffCLIP-published": [0.62, 0.50, 0.65]}
    data = make_study(tmp_path / "s", levels)
    assert init_rows(data, "DiffCLIP")[0].share is None
    assert "the gap itself cannot be told from luck" in init_sentence(data)

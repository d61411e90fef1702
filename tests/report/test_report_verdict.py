from made_results import record, runs_of, with_items

from diffclip.report.scoreboard import scoreboard
from diffclip.report.series import collect
from diffclip.report.verdict import basis, judge, spelled_out


def test_headlines_say_which_model_is_better_at_what(tmp_path):
    verdict = judge(collect(runs_of(tmp_path, {"CLIP": 0.2, "DiffCLIP": 0.6}, 1), []))
    assert verdict is not None
    assert verdict.headline == (
        "In one training run each on scenes (test), DiffCLIP is better than CLIP at top-1 accuracy, "
        "text→image R@5 and image→text R@5."
    )
    assert "only more seeds can tell" in verdict.caveat


def test_several_models_get_a_line_each(tmp_path):
    levels = {"CLIP": 0.5, "DiffCLIP": 0.5, "DiffCLIP-vision": 0.1}
    verdict = judge(collect(runs_of(tmp_path, levels, 3), []))
    assert verdict is not None
    assert verdict.headline == "Over 3 training seeds on scenes (test):"
    assert verdict.lines[0].startswith("DiffCLIP and CLIP cannot be told apart at ")
    assert verdict.lines[1].startswith("DiffCLIP-vision is worse than CLIP at ")
    assert verdict.caveat.endswith(
        "p is from a paired t-test over seeds; corrected for 6 comparisons (Holm)."
    )


def test_a_verdict_rests_on_corrected_p():
    # 2 / 2⁶ by itself, twice that beside a second comparison
    made = [
        with_items(model, [1] * right + [0] * (20 - right), dataset=name)
        for name, ours in (("cifar10", 10), ("dtd", 4))
        for model, right in (("CLIP", 4), ("DiffCLIP", ours))
    ]
    outcomes = {key: one for _, own in made for key, one in own.items()}
    alone = judge(collect([], [one for one, _ in made[:2]], outcomes))
    assert alone.headline == (
        "In one training run each on CIFAR-10 (test), DiffCLIP is better than CLIP at top-1 accuracy."
    )
    assert "corrected" not in alone.caveat
    assert "p 0.031" in spelled_out(alone.comparisons[0], collect([], []))
    assert basis(alone.comparisons[0]) == "95 % interval over the same test items, one training run each"
    made[2:] = [(one.model_copy(update={"task": "linear-probe"}), {}) for one, _ in made[2:]]
    both = judge(collect([], [one for one, _ in made], outcomes))
    assert "cannot be told apart" in both.headline
    assert "corrected for 2 comparisons (Holm)" in both.caveat
    assert both.caveat.endswith(
        "Each for itself, without the correction, these would pass: DiffCLIP higher at top-1 accuracy. "
        "That is a hint, not a finding."
    )
    assert "without the correction" not in alone.caveat


def suite(models, seeds=1):
    """Six tasks, two sets of each but one, and MMVP."""
    found = []
    for variant, level in models.items():
        for seed in range(seeds):
            add = {"seed": seed, "low": level - 0.01, "high": level + 0.01}
            for name in ("cifar10", "dtd"):
                found += [record(variant, "acc1", level, dataset=name, **add)]
                found += [
                    record(variant, "acc1", level, dataset=name, task=task, **add)
                    for task in ("few-shot", "linear-probe")
                ]
            found += [
                record(variant, "acc1", level, dataset=name, **add) for name in ("imagenet1k", "imagenet-a")
            ]
            found += [
                record(variant, f"{side}_retrieval_recall@5", level, task="retrieval", dataset=name, **add)
                for side in ("image", "text")
                for name in ("flickr30k", "mscoco_captions")
            ]
            found += [record(variant, "pair_accuracy", level, task="mmvp", dataset="mmvp", **add)]
    return found


def test_of_a_suite_the_averages_are_told():
    verdict = judge(collect([], suite({"CLIP": 0.3, "DiffCLIP": 0.5})))
    assert verdict.headline == (
        "In one training run each, tasks averaged over their sets, DiffCLIP is better than CLIP at linear probing, "
        "few-shot, image retrieval and text retrieval, and at zero-shot on ImageNet (test), and at out of domain on "
        "ImageNet A (test), and at right pairs on MMVP-VLM (test)."
    )
    assert len(verdict.measures) == 7
    assert (
        "where the outcomes of the items are not known; corrected for 7 comparisons (Holm)" in verdict.caveat
    )


def test_a_scoreboard_has_a_column_a_headline_and_tags_by_the_corrected_p():
    collection = collect([], suite({"CLIP": 0.3, "DiffCLIP": 0.3, "DiffCLIP-vision": 0.2}))
    verdict = judge(collection)
    board = scoreboard(collection, verdict)
    assert board.count("<th scope=col>") == 1 + 7
    assert "linear probing<small>mean over sets</small>" in board
    assert "right pairs<small>MMVP-VLM (test), chance 25 %</small>" in board
    assert board.count('class="tag unclear">cannot tell') == board.count('class="tag lower">worse') == 7
    assert "p &lt; 0.001" in board

from made_results import record, runs_of, with_items
from run_folders import SIZE

from diffclip.report.metrics import percentage
from diffclip.report.series import collect
from diffclip.report.tables import result_tables, to_html, to_markdown


def test_tables_have_values_means_differences_and_chance(tmp_path):
    collection = collect(runs_of(tmp_path, {"CLIP": 0.2, "DiffCLIP": 0.6}, 3), [])
    zero_shot, retrieval = result_tables(collection)
    assert zero_shot.title == "Zero-shot on scenes, test split"
    assert [row.kind for row in zero_shot.rows] == [
        *["seed"] * 3,
        "mean",
        *["seed"] * 3,
        "mean",
        "difference",
        "chance",
    ]
    assert zero_shot.rows[-1].cells == ["chance", "10 %"]
    assert retrieval.columns[1:] == [
        "text→image R@5 (n\u00a0=\u00a01,000)",
        "image→text R@5 (n\u00a0=\u00a0200)",
    ]
    assert retrieval.rows[-1].cells == ["chance", "2.5 %", "2.5 %"]
    assert [row.kind for row in result_tables(collection, every_seed=False)[0].rows] == [
        *["mean"] * 2,
        "difference",
        "chance",
    ]
    first = collection.results[0].record
    assert zero_shot.rows[0].cells == [
        "CLIP, seed 0",
        f"{100 * first.value:.1f} % [{100 * first.low:.1f}, {100 * first.high:.1f}]",
    ]
    assert f"Init: matched. Architecture of all models: {SIZE}." in " ".join(zero_shot.notes)
    markdown = to_markdown(zero_shot)
    assert markdown.count("\n| ") == len(zero_shot.rows) + 2
    assert "| **DiffCLIP, mean of 3 seeds** |" in markdown
    assert 'class="difference"' in to_html(zero_shot)


def test_missing_values_are_dashes():
    found = [record("CLIP", "acc1", 0.5), record("CLIP", "acc5", None, low=None, high=None)]
    (table,) = result_tables(collect([], found))
    assert table.rows[0].cells[2] == "–"
    assert percentage(None) == "–"


def test_differences_have_the_corrected_p_of_the_headline():
    made = [
        with_items(model, [1] * right + [0] * (20 - right))
        for model, right in (("CLIP", 4), ("DiffCLIP", 10), ("DiffCLIP-vision", 4))
    ]
    outcomes = {key: one for _, own in made for key, one in own.items()}
    (table,) = result_tables(collect([], [one for one, _ in made], outcomes))
    first, second = (row.cells[1] for row in table.rows if row.kind == "difference")
    assert first.startswith("+30.0 [+")
    assert first.endswith("], p 0.062")  # twice 2 / 2⁶
    assert second.endswith("], p 1")
    assert table.notes[-1] == (
        "p is from a paired test on the outcomes of the items; corrected for 2 comparisons, those of the headline "
        "(Holm)."
    )
    assert "<span>[+" in to_html(table)


def test_two_seeds_have_no_p():
    found = [
        record(model, "acc1", 0.1 * (seed + 1), seed) for model in ("CLIP", "DiffCLIP") for seed in (0, 1)
    ]
    (table,) = result_tables(collect([], found))
    assert [row.cells[1] for row in table.rows if row.kind == "difference"] == ["0.0 [0.0 to 0.0]"]
    assert not any(note.startswith("p is") for note in table.notes)


def test_draws_and_seeds_have_a_standard_deviation():
    draws = [
        record("CLIP", "acc1", v, draw=draw, low=v - 0.1, high=v + 0.1)
        for draw, v in enumerate((0.6, 0.7, 0.8))
    ]
    (table,) = result_tables(collect([], draws))
    assert table.rows[0].cells == ["CLIP, seed 0", "70.0 ± 10.0 % [60.0, 80.0]"]
    assert "Of a single model, ±: standard deviation over 3 draws of the task." in table.notes
    seeds = [record("CLIP", "acc1", v, seed) for seed, v in enumerate((0.6, 0.7, 0.8))]
    (table,) = result_tables(collect([], seeds), every_seed=False)
    assert table.rows[0].cells[1].startswith("70.0 ± 10.0 % [45.2, 94.8]")
    assert "Of a mean, ±: standard deviation over training seeds." in table.notes


def test_what_so_many_seeds_could_have_found_is_said():
    values = {"CLIP": [0.30, 0.40, 0.50], "DiffCLIP": [0.35, 0.46, 0.54]}
    found = [record(model, "acc1", v, seed) for model, own in values.items() for seed, v in enumerate(own)]
    (table,) = result_tables(collect([], found))
    assert (
        "So many seeds find a true difference of 3.3 points in 80 % of all cases, uncorrected." in table.notes
    )


def test_averages_are_the_first_table_where_they_are_over_several_sets():
    sets = [record("CLIP", "acc1", 0.3, dataset="cifar10"), record("CLIP", "acc1", 0.5, dataset="dtd")]
    averages, *each = result_tables(collect([], sets))
    assert (averages.title, len(each)) == ("Six tasks, each the mean over its sets", 2)
    assert averages.columns[1].startswith("zero-shot (n")
    assert averages.rows[0].cells[1].startswith("40.0 %")
    assert averages.notes[0].startswith("Zero-shot: mean of acc1 on cifar10 (test), dtd (test); zero-shot")


def test_a_bases_shifts_are_one_table_and_a_drop_may_be_negative():
    made = [
        record("CLIP", "acc1", v, dataset=name, low=v, high=v)
        for name, v in (("imagenet1k", 0.1), ("imagenet-r", 0.3))
    ]
    tables = [table for table in result_tables(collect([], made)) if table.title.startswith("Out-of-domain")]
    (table,) = tables
    assert table.title == "Out-of-domain on ImageNet, test split"
    assert table.rows[0].cells[1:] == ["30.0 % [30.0, 30.0]", "20.0 % [20.0, 20.0]", "−20.0 % [−20.0, −20.0]"]
    assert len([note for note in table.notes if ": " in note and "as measured on each" in note]) == 3

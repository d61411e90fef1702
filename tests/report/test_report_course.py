from diffclip.evaluation.records import Record
from diffclip.report.compare import compare
from diffclip.report.course import course_chart
from diffclip.report.page import page
from diffclip.report.series import collect


def record(model, step, value, seed=0):
    return Record(
        model=f"{model}-ViT-B-16",
        weights=f"runs/{model}/checkpoints/step_{step:08d}",
        task="zero-shot",
        dataset="cifar10",
        split="test",
        metric="acc1",
        value=value,
        count=1000,
        low=value - 0.03,
        high=value + 0.03,
        seed=seed,
        protocol="zero-shot; 10 classes",
    )


def watched(steps):
    return [
        record(model, step, 0.1 + gain + step / 1000)
        for model, gain in (("CLIP", 0.0), ("DiffCLIP", 0.05))
        for step in steps
    ]


def test_checkpoints_of_a_training_are_its_course_and_the_last_one_its_result():
    # in the order in which they happened to be measured
    collection = collect([], watched([300, 100, 200]))
    assert [series.label for series in collection.series] == ["CLIP", "DiffCLIP"]
    assert {result.record.weights[-3:] for result in collection.results} == {"300"}
    assert [step for step, result in collection.course if result.series.label == "CLIP"] == [100, 200, 300]
    (one,) = [one for one in compare(collection) if one.measure.dataset == "cifar10"]
    assert round(one.difference.mean, 6) == 0.05


def test_two_checkpoints_stay_two_series():
    collection = collect([], watched([100, 200]))
    assert len(collection.series) == 4
    assert collection.course == []
    assert course_chart(collection) is None


def test_the_chart_draws_every_checkpoint():
    chart = course_chart(collect([], watched([100, 200, 300])))
    (panel,) = chart.panels
    (axes,) = panel.figure().axes
    clip, diffclip, chance = axes.lines
    assert clip.get_xdata().tolist() == [100, 200, 300]
    assert [round(y, 6) for y in diffclip.get_ydata()] == [0.25, 0.35, 0.45]
    assert round(chance.get_ydata()[0], 6) == 0.1
    assert [key.label for key in chart.legend] == ["CLIP", "DiffCLIP"]


def test_the_page_has_it():
    assert "its 95 % interval from the sampling" in page(collect([], watched([1, 2, 3])), "Watched")

import pytest
from suite_records import paper_records, suite_records

from diffclip.evaluation.averages import PANELS
from diffclip.report.out_of_domain import out_of_domain_chart, shift_families
from diffclip.report.series import collect
from diffclip.report.six_tasks import is_broad, six_tasks_chart
from diffclip.report.style import COLOURS, MUTED

TWO = {"CLIP": 0.0, "DiffCLIP": 0.03}
FOUR = {**TWO, "DiffCLIP-dynamic": 0.05, "DiffCLIP-vision": -0.02}
CORRUPTED = tuple(f"cifar10+{name}:3" for name in ("noise", "blur", "jpeg", "contrast"))


def axes_of(chart):
    return [panel.figure().axes[0] for panel in chart.panels]


def overlapping(figure):
    """Pairs of written texts in a figure that lie on each other."""
    renderer = figure.canvas.get_renderer()
    figure.draw(renderer)
    boxes = [
        (text.get_text(), text.get_window_extent(renderer))
        for axes in figure.axes
        for text in [
            *axes.texts,
            axes.title,
            axes._left_title,
            *(axes.get_xticklabels() if axes.axison else []),
        ]
        if text.get_text() and text.get_visible()
    ]
    return [
        (a, b)
        for index, (a, box) in enumerate(boxes)
        for b, other in boxes[index + 1 :]
        if box.overlaps(other) and box.width and other.width
    ]


@pytest.mark.parametrize("models", [TWO, FOUR])
@pytest.mark.parametrize("seeds", [(0,), (0, 1), (0, 1, 2)])
def test_six_panels_with_a_bar_a_model_and_its_gain(models, seeds):
    chart = six_tasks_chart(collect([], suite_records(models, seeds=seeds)))
    assert [panel.title.lower().removesuffix(" imagenet") for panel in chart.panels] == list(PANELS)
    assert [key.label for key in chart.legend] == list(models)
    for axes in axes_of(chart):
        assert len(axes.patches) == len(models)
        gains = [text.get_text() for text in axes.texts if text.get_text()[0] in "+−0"]
        assert len(gains) >= len(models) - 1
        assert axes.get_ylim()[0] == 0


@pytest.mark.parametrize("models", [TWO, FOUR])
def test_no_text_lies_on_another_at_page_size(models):
    collection = collect([], suite_records(models, seeds=(0, 1), corruptions=CORRUPTED))
    for chart in (six_tasks_chart(collection), out_of_domain_chart(collection)):
        for panel in chart.panels:
            assert overlapping(panel.figure()) == []


def test_real_gains_are_bold_and_others_pale():
    collection = collect([], suite_records(TWO))
    texts = [text for axes in axes_of(six_tasks_chart(collection)) for text in axes.texts]
    bold = {text.get_text() for text in texts if text.get_weight() == "bold"}
    pale = {text.get_text() for text in texts if text.get_color() == MUTED}
    assert bold
    assert pale
    assert not bold & pale


def test_a_model_measured_on_other_sets_keeps_its_place_empty_and_is_named():
    records = suite_records(TWO, without={"DiffCLIP": ("imagenet-a", "cifar10")})
    chart = six_tasks_chart(collect([], records))
    assert "DiffCLIP in linear probing" in chart.caption
    probing, _, retrieval, *_ = axes_of(chart)
    assert len(probing.patches) == 1
    assert len(retrieval.patches) == 2
    assert "–" in [text.get_text() for text in probing.texts]
    assert probing.get_xlim() == retrieval.get_xlim()


def test_one_model_alone_has_bars_without_gains():
    chart = six_tasks_chart(collect([], suite_records({"CLIP": 0.0})))
    assert "difference" not in chart.caption
    assert all(not text.get_text().startswith(("+", "−")) for axes in axes_of(chart) for text in axes.texts)


def test_few_sets_need_no_averages():
    records = [one for one in suite_records(TWO) if one.dataset in ("flickr8k", "imagenet1k")]
    assert not is_broad(collect([], records))
    assert six_tasks_chart(collect([], records)) is None


def test_the_papers_figure_can_be_drawn_from_its_tables():
    chart = six_tasks_chart(collect([], paper_records()))
    assert [panel.title for panel in chart.panels][:2] == ["Linear probing", "Few-shot"]
    assert "Whiskers" not in chart.caption
    values = [text.get_text() for axes in axes_of(chart) for text in axes.texts]
    assert {"63.8", "64.8", "77.0", "77.3", "13.6", "33.8"} <= set(values)


def test_out_of_domain_has_base_shifts_and_their_mean():
    collection = collect([], suite_records(TWO, corruptions=CORRUPTED))
    chart = out_of_domain_chart(collection)
    first, second = axes_of(chart)
    labels = [label.get_text().replace("\n", " ") for label in first.get_xticklabels()]
    assert labels == ["ImageNet", "V2", "A", "R", "Sketch", "mean of shifts"]
    labels = [label.get_text().replace("\n", " ") for label in second.get_xticklabels()]
    assert labels == ["CIFAR-10", "noise 3", "blur 3", "jpeg 3", "contrast 3", "mean of shifts"]
    assert len(first.patches) == 12
    assert {patch.get_facecolor()[:3] for patch in first.patches} == {
        tuple(int(COLOURS[name][at : at + 2], 16) / 255 for at in (1, 3, 5)) for name in TWO
    }


def test_several_severities_are_a_panel_a_corruption():
    names = [f"cifar10+{name}:{severity}" for name in ("noise", "blur") for severity in (1, 3, 5)]
    chart = out_of_domain_chart(collect([], suite_records(TWO, corruptions=names)))
    assert [panel.title for panel in chart.panels] == [
        "ImageNet and its shifts",
        "CIFAR-10 and noise",
        "CIFAR-10 and blur",
    ]


def test_a_shift_without_its_base_is_no_family():
    records = [one for one in suite_records(TWO) if one.dataset != "imagenet1k"]
    collection = collect([], records)
    assert shift_families(collection) == []
    assert out_of_domain_chart(collection) is None

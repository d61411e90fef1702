"""Figures of attention: what a colour means, where text goes, and that nothing is cut off."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

from diffclip.config import PreprocessConfig
from diffclip.data.transforms import EvalTransform, eval_transform
from diffclip.focus.attend import Attended
from diffclip.report.attend_figure import Band, Shown, Tile, by_text_figure, tiles_figure
from diffclip.report.attend_files import page_files, write_pages
from diffclip.report.attend_pages import PAGE, attention_pages, shown_of
from diffclip.report.attend_view import MOST, as_seen, overlaid, scale_strip, usual_sum
from diffclip.report.attend_words import SHADE, height_of_words, width_of, wrapped

GREY = np.full((60, 60, 3), 120, np.uint8)
LONG = "a photograph of an incomprehensibilitiesandcounterrevolutionaries museum with two $5 lamps_{x} " * 3
WORDS = [("a ", 0.5), ("skate", 0.0), ("boarder ", 1.0), *[(f"word{i} ", i / 40) for i in range(20)]]


def shown(seed: int = 0, sign: bool = False) -> Shown:
    values = np.random.default_rng(seed).exponential(size=(5, 5))
    return Shown(GREY, values - sign, ["cosine 0.21 · 87 %"], WORDS)


def attended(pictures: int, texts: int) -> Attended:
    rng = np.random.default_rng(0)
    numbers = rng.random((pictures, texts), dtype=np.float32)
    return Attended(
        rng.random((pictures, max(texts, 1), 4, 4), dtype=np.float32),
        numbers,
        numbers.copy(),
        [["a ", "mug "]] * texts,
        rng.random((pictures, texts, 2), dtype=np.float32),
    )


@pytest.mark.parametrize("resize", [None, 40])
@pytest.mark.parametrize("size", [(90, 61), (50, 200)])
def test_a_view_is_what_the_model_is_given(size: tuple[int, int], resize: int | None) -> None:
    x, y = np.meshgrid(np.linspace(0, 255, size[0]), np.linspace(0, 255, size[1]))
    picture = Image.fromarray(np.stack([x, y, 255 - x], -1).astype(np.uint8))
    settings = PreprocessConfig(mean=(0, 0, 0), std=(1, 1, 1), resize=resize)
    preprocess = eval_transform(32, settings)
    assert isinstance(preprocess, EvalTransform)
    given = 255 * preprocess(picture).permute(1, 2, 0).numpy()
    view = as_seen(picture, preprocess, 32)
    assert view.shape == (32, 32, 3)
    # the crop of whole pixels is up to half a pixel of the small picture away
    assert np.abs(view - given).max() < 0.75 * 255 / 32
    assert as_seen(picture, preprocess, 100).shape == (100, 100, 3)


def test_colours_say_how_many_times_the_average_a_patch_has() -> None:
    even = overlaid(GREY, np.full((4, 4), 7.0), signed=False)
    assert np.ptp(even, axis=-1).max() <= 1  # nothing above the average: grey all over
    values = np.ones((6, 6))
    values[2:4, 2:4] = 10
    once, again = (overlaid(GREY, factor * values, signed=False) for factor in (1, 1e-4))
    np.testing.assert_array_equal(once, again)
    assert np.ptp(once[30, 30].astype(int)) > 60  # coloured where it is stronger
    assert np.ptp(once[2, 2].astype(int)) <= 1  # grey where it is weaker
    # twice the average has one colour in every map, whatever the rest of it holds
    patches = []
    for rest in (0.0, 0.5):
        values = np.full((9, 9), rest)
        values[:3, :3] = 2.0
        values[6:, 6:] = 81 - 9 * 2 - 63 * rest if rest else 7.0
        values[6:, 6:] *= (81 - 18 - 63 * rest) / values[6:, 6:].sum()
        values[8, :3] += (81 - values.sum()) / 3
        patches.append(
            overlaid(np.full((90, 90, 3), 120, np.uint8), values, signed=False)[12, 12].astype(int)
        )
    assert np.abs(patches[0] - patches[1]).max() <= 3


def test_a_map_of_nothing_is_grey_and_signs_have_colours_of_their_own() -> None:
    nothing = overlaid(GREY, np.zeros((4, 4)), signed=False)
    assert np.ptp(nothing, axis=-1).max() <= 1
    values = np.zeros((6, 6))
    values[:2, :2], values[4:, 4:] = 1, -1
    both = overlaid(GREY, values, signed=True).astype(int)
    assert both[8, 8, 0] > both[8, 8, 2] + 40  # red
    assert both[-8, -8, 2] > both[-8, -8, 0] + 40  # blue
    strip = scale_strip(signed=True).astype(int)[0]
    assert strip[0, 2] > strip[0, 0]
    assert strip[-1, 0] > strip[-1, 2]
    greens = scale_strip(signed=False)[0, :, 1]
    assert greens[20] > greens[128] > greens[255]
    assert MOST == 16


@pytest.mark.parametrize("width", [0.4, 1.1, 3.0])
@pytest.mark.parametrize("lines", [1, 2, 50])
def test_wrapped_text_keeps_to_its_width(width: float, lines: int) -> None:
    rows = wrapped(LONG, width, 9, lines)
    assert 1 <= len(rows) <= lines
    for row in rows:
        assert width_of(row, 9) <= width
    if lines == 50 and width > 1:
        assert "".join(rows).replace(" ", "") == LONG.replace(" ", "")
    else:
        assert rows[-1].endswith("…") or "".join(rows).replace(" ", "") == LONG.replace(" ", "")
    assert wrapped("", width, 9, lines) == [""]


def inside(figure: Figure) -> None:
    """No text reaches over the figure's edge."""
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    whole = figure.bbox
    for text in figure.texts:
        box = text.get_window_extent(renderer)
        assert box.x0 >= whole.x0 - 1, text.get_text()
        assert box.x1 <= whole.x1 + 1, text.get_text()
        assert box.y0 >= whole.y0 - 1, text.get_text()
        assert box.y1 <= whole.y1 + 1, text.get_text()


@pytest.mark.parametrize(("texts", "sign"), [(1, False), (2, True), (5, False)])
def test_by_text_has_a_row_a_model_and_cuts_nothing_off(texts: int, sign: bool) -> None:
    names = ["CLIP", "DiffCLIP-dynamic-ViT-B-16 after a very long training"]
    rows = {name: [shown(i, sign) for i in range(texts)] for name in names}
    figure = by_text_figure([Band([LONG] * texts, rows), Band(["a mug"] * texts, rows)], LONG)
    inside(figure)
    # for two pictures two models with a picture and the maps each, and the scale
    assert len(figure.axes) == 2 * 2 * (1 + texts) + 1
    labels = [text.get_text() for text in figure.texts]
    assert labels.count("CLIP") == 2
    assert labels.count("cosine 0.21 · 87 %") == 4 * texts
    assert ("±1×" in labels) is sign
    assert "≥ 16×" in labels


def test_words_are_shaded_by_their_relevance_and_wrap() -> None:
    figure = by_text_figure([Band(["a mug"], {"CLIP": [shown()]})], "note")
    patches = [patch for patch in figure.get_children() if isinstance(patch, FancyBboxPatch)]
    assert len(patches) == len(WORDS)
    alphas = [patch.get_alpha() for patch in patches]
    assert np.argmax(alphas) == 2
    assert alphas[1] == 0
    assert alphas[0] == pytest.approx(alphas[2] / 2)
    assert {patch.get_facecolor()[:3] for patch in patches} == {
        tuple(int(SHADE[i : i + 2], 16) / 255 for i in (1, 3, 5))
    }
    # pieces of one word touch, and no two pieces overlap
    boxes = [patch.get_bbox() for patch in patches]
    assert boxes[1].x1 == pytest.approx(boxes[2].x0)
    for one, other in pairwise(boxes):
        assert other.x0 >= one.x1 - 1e-6 or other.y1 <= one.y0 + 1e-6
    assert height_of_words(WORDS, 1.0, 7.5) > height_of_words(WORDS, 3.0, 7.5) > 0
    assert height_of_words([], 1.0, 7.5) == 0


@pytest.mark.parametrize(("models", "count"), [(1, 1), (2, 3), (4, 2)])
def test_tiles_put_models_side_by_side(models: int, count: int) -> None:
    one = Shown(GREY, np.eye(5), ["DiffCLIP-dynamic, seed 0", "cosine 0.21"])
    figure = tiles_figure([Tile(LONG, [one] * models)] * count, "note")
    inside(figure)
    assert len(figure.axes) == count * (1 + models) + 1


@pytest.mark.parametrize("texts", [[LONG, "a lamp"], []])
def test_many_pictures_make_pages_of_a_sheet(texts: list[str]) -> None:
    count = PAGE + 3
    found = {name: attended(count, len(texts)) for name in ("CLIP", "DiffCLIP")}
    views = dict.fromkeys(found, [GREY] * count)
    names = [f"{'picture' * 5}-{i}.jpg" for i in range(count)]
    method = "relevance" if texts else "rollout"
    pages = attention_pages(found, views, names, texts, method, None)
    columns = 1 + 2 * max(len(texts), 1)
    assert [len(page.axes) for page in pages] == [PAGE * columns + 1, 3 * columns + 1]
    for page in pages:
        inside(page)


def test_one_picture_is_a_figure_by_text_that_says_what_it_shows() -> None:
    found = {"CLIP": attended(1, 2)}
    (figure,) = attention_pages(found, {"CLIP": [GREY]}, ["a.jpg"], ["a mug", "a lamp"], "relevance", "2")
    texts = " ".join(text.get_text().replace("\n", " ") for text in figure.texts)
    for part in ("a mug", "a lamp", "Relevance, vision layer 2", "times the average patch", "softmax", "mug"):
        assert part in texts
    (plain,) = attention_pages({"CLIP": attended(1, 0)}, {"CLIP": [GREY]}, ["a.jpg"], [], "A1", None)
    labels = [text.get_text() for text in plain.texts]
    assert "A1" in labels
    assert not any("cosine" in label for label in labels)


def test_scores_are_rounded_as_a_reader_expects() -> None:
    one = attended(1, 3)
    one.cosines[:] = (-0.001, -0.234, 0.5)
    one.probabilities[:] = (0.0004, 0.1236, 0.9991)
    (figure,) = attention_pages(
        {"CLIP": one}, {"CLIP": [GREY]}, ["a.jpg"], ["a", "b", "c"], "relevance", None
    )
    labels = [text.get_text() for text in figure.texts]
    for label in ("cosine 0.00 · <_1_%", "cosine −0.23 · 12_%", "cosine 0.50 · >_99_%"):
        assert label.replace("_", "\N{NO-BREAK SPACE}") in labels


def test_a_share_is_kept_on_one_line() -> None:
    share = "<\N{NO-BREAK SPACE}1\N{NO-BREAK SPACE}%"
    assert wrapped(f"cosine 0.15 · {share}", width_of("cosine 0.15 · < 1", 7.5), 7.5, 2) == [
        "cosine 0.15 ·",
        share,
    ]


def test_words_too_wide_are_cut_after_hyphens_and_never_measured_whole() -> None:
    label = "CLIP-v128x3x4p8-t128x3x4"
    assert wrapped(label, 0.95 * width_of(label, 9), 9, 2) == ["CLIP-v128x3x4p8-", "t128x3x4"]
    assert wrapped("-" + "m" * 9, width_of("-mmm", 9), 9, 9) == ["-mmm", "mmm", "mmm"]
    before = width_of.cache_info()
    (first, second) = wrapped("i" * 100_000 + " end", 1.0, 7.5, 2)
    assert set(first) == {"i"}
    assert second.endswith("…")
    assert width_of(f"{first}i", 7.5) > 1
    assert width_of.cache_info().misses - before.misses < 100
    assert before.maxsize is not None


def test_a_map_of_practically_nothing_is_drawn_and_called_so() -> None:
    one = attended(2, 3)
    one.maps[0, 1], one.maps[1, 0] = 1e-9, 0
    one.maps[0, 1, 0, 0] = 1e-6
    shown = [shown_of(one, number, GREY, usual_sum([one.maps])) for number in (0, 1)]
    said = [["nothing speaks for it" in each.below for each in row] for row in shown]
    assert said == [[False, True, False], [True, False, False]]
    faint = overlaid(GREY, shown[0][1].values, signed=False)
    assert np.ptp(faint, axis=-1).max() <= 1
    alone = attended(1, 0)
    alone.maps[:] = 0
    assert shown_of(alone, 0, GREY, usual_sum([alone.maps]))[0].below == []


def test_names_and_texts_of_any_letters_are_drawn() -> None:
    odd = "a\udcff\n\u202eb"
    one = attended(2, 1)
    one.pieces[0][0] = "\u202e"
    for count in (1, 2):
        pages = attention_pages({"CLIP": one}, {"CLIP": [GREY] * 2}, [odd] * count, [odd], "relevance", None)
        drawn = "".join(text.get_text() for text in pages[0].texts)
        assert "\\udcff" in drawn
        assert "\u202e" not in drawn
        assert "\udcff" not in drawn


def test_equal_figures_become_equal_files(tmp_path) -> None:
    for name in ("a", "b"):
        for suffix in (".png", ".svg", ".pdf"):
            figures = [by_text_figure([Band(["a mug"], {"CLIP": [shown()]})], "note")] * 2
            files = write_pages(tmp_path / f"{name}{suffix}", figures, 2)
            assert files == page_files(tmp_path / f"{name}{suffix}", 2)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}{end}" for name in "ab" for end in ("-1.png", "-2.png", "-1.svg", "-2.svg", ".pdf")
    }
    for end in ("-1.png", "-2.svg", ".pdf"):
        assert (tmp_path / f"a{end}").read_bytes() == (tmp_path / f"b{end}").read_bytes()
    assert (tmp_path / "a.pdf").read_bytes().count(b"/Type /Page ") + (tmp_path / "a.pdf").read_bytes().count(
        b"/Type /Page\n"
    ) == 2

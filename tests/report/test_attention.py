"""Figures of attention: one scale for all maps, and all texts inside the figure."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from diffclip.config import PreprocessConfig
from diffclip.maps.attend import Attended
from diffclip.maps.attention_maps import visible_part
from diffclip.maps.view import View
from diffclip.preprocess import EvalTransform
from diffclip.report.attention import (
    Cell,
    attend_figures,
    grid_figure,
)

GRAY = np.full((60, 60, 3), 120, np.uint8)
LONG = "a photograph of an incomprehensibilitiesandcounterrevolutionaries museum with two $5 lamps_{x} " * 3


def attended(images: int, texts: int) -> Attended:
    rng = np.random.default_rng(0)
    numbers = rng.random((images, texts), dtype=np.float32)
    maps = rng.random((images, max(texts, 1), 4, 4), dtype=np.float32)
    spoken = np.tile(np.float32([0.2, 0.1, 0.3, 0.9]), (images, texts, 1))
    return Attended(maps, numbers, numbers.copy(), [["a ", "foot", "ball ", ": "]] * texts, spoken)


def words(figure: Figure) -> list[str]:
    labels = [axes.get_title() for axes in figure.axes]
    labels += [axes.get_xlabel() for axes in figure.axes]
    labels += [axes.get_ylabel() for axes in figure.axes]
    return [text for text in labels if text] + [text.get_text() for text in figure.texts]


@pytest.mark.parametrize(("size", "resize"), [((90, 61), None), ((50, 200), 40), ((90, 61), "squash")])
def test_visible_part_equals_the_model_input(size: tuple[int, int], resize: int | str | None) -> None:
    x, y = np.meshgrid(np.linspace(0, 255, size[0]), np.linspace(0, 255, size[1]))
    image = Image.fromarray(np.stack([x, y, 255 - x], -1).astype(np.uint8))
    preprocess = EvalTransform(32, PreprocessConfig(mean=(0, 0, 0), std=(1, 1, 1), resize=resize))
    model_input = 255 * preprocess(image).permute(1, 2, 0).numpy()
    visible = np.asarray(visible_part(image, preprocess, 32))
    # a crop of whole pixels may be off by up to half a pixel of the small image
    assert np.abs(visible - model_input).max() < 0.75 * 255 / 32


@pytest.mark.parametrize("texts", [1, 2])
def test_figure_of_one_image_has_a_row_per_model_and_its_labels(texts: int) -> None:
    results = {name: attended(1, texts) for name in ("CLIP", "DiffCLIP")}
    queries = [f"text {number}" for number in range(texts)]
    view = View(layers="2").resolved(queries)
    (figure,) = attend_figures(results, {name: [GRAY] for name in results}, ["a.jpg"], queries, view)
    assert len(figure.axes) == 2 * (1 + texts) + 1  # and the color bar
    labels = words(figure)
    assert {"CLIP", "DiffCLIP", "image", *queries} <= set(labels)
    assert sum(text.startswith("cosine ") for text in labels) == 2 * texts
    assert "Relevance, vision layer 2, mean over heads" in labels[-1].replace("\n", " ")
    assert any("%" in text for text in labels) == (texts > 1)
    faint = results["DiffCLIP"]
    results["DiffCLIP"] = replace(faint, maps=faint.maps / 100)
    (figure,) = attend_figures(results, {name: [GRAY] for name in results}, ["a.jpg"], queries, view)
    assert len(figure.axes) == 3 * (1 + texts) + 1
    assert any("own scale to 0.02" in " ".join(text.split()) for text in words(figure))


@pytest.mark.filterwarnings("ignore:Glyph")
def test_texts_stay_inside_the_figure_and_odd_letters_are_escaped() -> None:
    odd = "a\udcff\n\u202eb"
    cell = Cell(GRAY, np.eye(5), LONG, f"{LONG}\n{odd}")
    figure = grid_figure([[Cell(GRAY, title="image"), cell, cell]] * 2, LONG, [LONG, "CLIP"])
    figure.draw_without_rendering()
    labels = [text for axes in figure.axes for text in (axes.title, axes.xaxis.label, axes.yaxis.label)]
    for box in (text.get_window_extent() for text in (*figure.texts, *labels)):
        assert min(box.x0, box.y0) >= -1
        assert box.x1 <= figure.bbox.x1 + 1
        assert box.y1 <= figure.bbox.y1 + 1
    assert not any("\u202e" in text or "\udcff" in text for text in words(figure))

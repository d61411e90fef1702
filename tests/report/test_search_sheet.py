import matplotlib.image
import numpy as np
import pytest
from PIL import Image

from diffclip.report.attention import MOST_HITS, search_sheet
from diffclip.search import Hit


@pytest.fixture
def hits(tmp_path):
    def make(count, name="{:03d}.png"):
        Image.new("RGB", (40, 30), "teal").save(tmp_path / "image.png")
        made = [Hit(tmp_path / name.format(number), 0.5 - number / 1000) for number in range(count)]
        for hit in made:
            if not hit.path.exists():
                hit.path.symlink_to(tmp_path / "image.png")
        return made

    return make


def words(figure):
    return [text for axes in figure.axes for text in (axes.get_title(), axes.get_xlabel())]


def images(figure):
    return sum(len(axes.images) for axes in figure.axes)


def test_each_image_with_rank_cosine_and_name_and_a_hit_may_be_gone(hits, tmp_path):
    figure = search_sheet("two dogs on a beach", hits(5), "9 images in photos, by CLIP")
    assert figure.get_suptitle() == "“two dogs on a beach”"
    assert figure.get_supxlabel() == "9 images in photos, by CLIP"
    assert {"1: 0.500", "000.png", "5: 0.496", "004.png"} <= set(words(figure))
    assert images(figure) == 5
    figure = search_sheet(Image.new("RGB", (9, 9)), [*hits(2), Hit(tmp_path / "gone.png", 0.1)], "x")
    assert images(figure) == 4
    assert "gone.png cannot be read" in " ".join(words(figure)).replace("\n", " ")
    assert "query" in words(figure)


def test_names_of_any_letters_and_lengths_stay_apart(hits, tmp_path):
    name = "$ a holiday at the sea, the third day {:02d}.png"
    figure = search_sheet("costs $5 " * 60, hits(MOST_HITS + 4, name), "a long folder/" * 30)
    assert images(figure) == MOST_HITS
    assert figure.get_supxlabel().endswith(f"the first {MOST_HITS} of {MOST_HITS + 4}")
    figure.savefig(tmp_path / "sheet.png", dpi=50)
    assert np.ptp(matplotlib.image.imread(tmp_path / "sheet.png")) > 0
    boxes = [axes.xaxis.label.get_window_extent() for axes in figure.axes]
    assert not any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])

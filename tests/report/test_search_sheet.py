import re

import numpy as np
import pytest

from diffclip.errors import InputError
from diffclip.report.search_sheet import MOST, Found, search_sheet, shortened, thumbnail
from diffclip.report.style import png_of, svg_of

PICTURE = np.full((30, 40, 3), 200, dtype=np.uint8)


def found(count, picture=PICTURE):
    return [Found(picture, f"{number:03d}.png", 0.5 - number / 1000) for number in range(count)]


def texts(figure):
    return [text.get_text() for text in figure.texts]


def test_each_picture_with_rank_name_and_cosine():
    figure = search_sheet("two dogs on a beach", found(5), "9 pictures in photos, by CLIP")
    said = texts(figure)
    assert said[:2] == ["“two dogs on a beach”", "9 pictures in photos, by CLIP"]
    assert said[2:5] == ["1", "0.500", "000.png"]
    assert said[-3:] == ["5", "0.496", "004.png"]
    assert sum(len(axes.images) for axes in figure.axes) == 5
    assert png_of(figure).startswith(b"\x89PNG")


def test_words_stay_within_the_sheet_and_apart():
    long = [Found(PICTURE, "W" * 300 + ".png", -0.123) for _ in range(14)]
    for answers in (long[:12], long):
        figure = search_sheet("many words " * 40, answers, "W" * 160)
        boxes = [text.get_window_extent() for text in figure.texts]
        width = figure.bbox.width
        for box in boxes:
            assert box.x0 >= 0
            assert box.y0 >= 0
            assert box.x1 <= width
        names = boxes[4::3]
        assert not any(a.overlaps(b) for place, a in enumerate(names) for b in names[:place])
        first = figure.axes[0].get_window_extent()
        assert boxes[1].y0 >= first.y1
        assert boxes[0].y0 >= boxes[1].y1


def test_dollars_are_no_formulas():
    figure = search_sheet("$5 and $x_1$", [Found(PICTURE, "$\\frac$.png", 0.1)], "x")
    assert "$5 and $x_1$" in texts(figure)[0]
    assert "<svg" in svg_of(figure)


def test_a_picture_as_the_query_and_one_that_is_gone():
    figure = search_sheet(PICTURE, [*found(2), Found(None, "gone.png", 0.1)], "x")
    assert sum(len(axes.images) for axes in figure.axes) == 3
    assert any(text.get_text() == "cannot be read" for axes in figure.axes for text in axes.texts)


def test_only_so_many_are_shown():
    figure = search_sheet("a", found(MOST + 4), "x")
    assert sum(len(axes.images) for axes in figure.axes) == MOST
    assert texts(figure)[1] == f"x; the first {MOST} of {MOST + 4}"
    with pytest.raises(InputError, match="nothing was found"):
        search_sheet("a", [], "x")


def test_names_keep_their_ends():
    assert shortened("short.png", 1.0, 8) == "short.png"
    short = shortened("holiday at the sea, the third day, 0042.jpg", 1.0, 8)
    assert re.fullmatch(r"holiday.*….*042\.jpg", short)
    assert len(short) < 22
    assert len(shortened("W" * 100, 1.0, 8)) < len(shortened("i" * 100, 1.0, 8))


def test_thumbnails(tmp_path):
    from PIL import Image

    Image.new("RGB", (1000, 500)).save(tmp_path / "a.png")
    assert thumbnail(tmp_path / "a.png").shape == (240, 480, 3)
    assert thumbnail(tmp_path / "missing.png") is None

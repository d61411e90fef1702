import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from diffclip.web.look import METHODS, Look, Map, look
from diffclip.web.markup import Shown, gallery, message, results
from diffclip.web.overlay import gradient, map_uri, thumbnail

HOSTILE = "<script>alert(1)</script>\"' onerror=x ${alert(2)} {{value}}"
SHOWN = Shown("A <b>model</b>", "from & here", ("#000", "#fff"))


class Parts(HTMLParser):
    """The elements of some HTML, each with its attributes, and the text."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.text = [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text.append(data)

    def having(self, name):
        return [attributes for _, attributes in self.elements if name in attributes]


@pytest.fixture(scope="module")
def both(plain, differential):
    picture = Image.effect_noise((48, 48), 60).convert("RGB")
    texts = [HOSTILE, "a dog", "a cat"]
    models = [(SHOWN, look(one, picture, texts), picture) for one in (plain, differential)]
    return models, texts


def pixels(uri):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGBA"))


def test_texts_and_names_are_escaped(both):
    parts = Parts(results(*both, "relevance", 0.6, scene=False))
    assert not {"script", "b", "style", "iframe"} & {tag for tag, _ in parts.elements}
    assert not parts.having("onerror")
    text = "".join(parts.text)
    assert text.count(HOSTILE) == 2
    assert "A <b>model</b>" in text


def test_the_first_text_and_the_chosen_method_are_visible(both):
    for method in METHODS:
        parts = Parts(results(*both, method, 0.25, scene=False))
        shown = [part for part in parts.having("data-map") if "hidden" not in part]
        assert {part["data-map"] for part in shown} == {method}
        assert {part.get("data-text") for part in shown} <= {None, "0"}
        images = [part for part in shown if part.get("class") == "dc-map"]
        assert len(images) == (1 if method in ("A1", "A2") else 2)
        assert parts.having("style")[0]["style"] == "--dc-opacity:0.25"
    assert "This model has one map a head: there is no A2." in parts.text


def test_there_is_a_map_for_each_text_and_method(both):
    parts = Parts(results(*both, "relevance", 0.6, scene=False))
    maps = [(part["data-map"], part.get("data-text")) for part in parts.having("src") if "data-map" in part]
    of_texts = [("relevance", str(index)) for index in range(3)]
    assert sorted(maps, key=str) == sorted(
        2 * of_texts + 2 * [("rollout", None), ("attention", None)] + [("A1", None), ("A2", None)], key=str
    )


def test_bars_are_the_probabilities(both):
    models, texts = both
    html = results(models, texts, "relevance", 0.6, scene=False)
    widths = [float(width) / 100 for width in re.findall(r'<i style="width:([\d.]+)%">', html)]
    wanted = [share for _, seen, _ in models for share in seen.probabilities]
    assert widths == pytest.approx(wanted, abs=1e-4)


def test_lambdas(both):
    html = results(*both, "relevance", 0.6, scene=False)
    assert html.count("<svg") == 1
    assert "this model’s attention is plain: it has no λ".lower() in html.lower()
    (_, _, _), (_, seen, _) = both[0]
    for tower, name in (("visual", "vision tower"), ("text", "text tower")):
        assert f"{name}: {', '.join(f'{value:.3f}' for value in seen.lambdas[tower])}" in html


def test_object_numbers_are_announced_where_there_is_no_mask(both):
    assert "Numbers of the object need its mask" in results(*both, "relevance", 0.6, scene=False)
    assert "Numbers of the object need its mask" not in results(*both, "relevance", 0.6, scene=True)


def test_the_strongest_patch_is_the_brightest_place():
    values = np.zeros((4, 4), np.float32)
    values[1, 2] = 3.0
    image = pixels(map_uri(values))
    light = image[..., :3].astype(int).sum(-1)
    row, column = np.unravel_index(light.argmax(), light.shape)
    assert (row * 4 // len(light), column * 4 // len(light)) == (1, 2)
    assert image[0, 0, 3] < image[row, column, 3]


def test_a_map_with_a_sign_is_red_above_and_blue_below():
    values = np.array([[1.0, 0.0], [0.0, -1.0]], np.float32)
    image = pixels(map_uri(values)).astype(int)
    assert image[0, 0, 0] > image[0, 0, 2] + 50
    assert image[-1, -1, 2] > image[-1, -1, 0] + 50
    assert gradient(True) != gradient(False)


def test_a_map_of_zeros_has_no_scale_and_no_numbers():
    zeros, one = np.zeros((3, 3), np.float32), np.eye(3, dtype=np.float32)
    seen = Look(
        [0.1, 0.2], [0.5, 0.5], {("relevance", 0): Map(zeros, {}), ("relevance", 1): Map(one, {})}, {}
    )
    html = results([(SHOWN, seen, Image.new("RGB", (9, 9)))], ["a", "b"], "relevance", 0.6, scene=False)
    assert html.count("Nothing in the picture speaks for this text") == 1
    assert html.count('class="dc-scale"') == html.count('class="dc-map"') == 1


def test_messages_and_hits_are_escaped():
    assert "<script>" not in message(HOSTILE)
    assert 'role="alert"' in message("x")
    parts = Parts(gallery([(HOSTILE, -0.5, None), ("b.png", 0.25, "data:image/webp;base64,AA==")]))
    assert [part["alt"] for part in parts.having("alt")] == ["b.png"]
    assert "cosine −0.500" in parts.text
    assert "cannot be read" in parts.text
    assert "script" not in {tag for tag, _ in parts.elements}


@pytest.mark.parametrize(
    ("size", "wanted"), [((400, 100), (40, 10)), ((10, 5), (10, 5)), ((9000, 1), (40, 1))]
)
def test_thumbnails(size, wanted):
    assert thumbnail(Image.new("RGB", size), 40).size == wanted

import base64
import io
import os
from dataclasses import replace
from html.parser import HTMLParser
from unittest import mock
from urllib.request import getproxies

import httpx
import numpy as np
import pytest
from PIL import Image

from diffclip.errors import InputError

gradio = pytest.importorskip("gradio")

from diffclip.web.look import Map, look  # noqa: E402
from diffclip.web.page import MAX_LETTERS, MAX_TEXTS, build, parse_texts  # noqa: E402
from diffclip.web.results import PageModel, error_message, page_models, render_looks  # noqa: E402
from diffclip.web.server import pick_port, serve_in_background  # noqa: E402

HOSTILE = "<script>alert(1)</script>\"' onerror=x ${alert(2)} {{value}}"
MODEL = PageModel("A <b>model</b>", "from & here", "#000", None)


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
    image = Image.effect_noise((48, 48), 60).convert("RGB")
    texts = [HOSTILE, "a dog", "a cat"]
    return [(MODEL, look(model, image, texts), image) for model in (plain, differential)], texts


def pixels(uri):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGBA"))


def test_texts_and_names_are_escaped(both):
    parts = Parts(render_looks(*both, "relevance", 0.6))
    assert not {"script", "b", "style", "iframe"} & {tag for tag, _ in parts.elements}
    assert not parts.having("onerror")
    assert "".join(parts.text).count(HOSTILE) == 2
    assert "A <b>model</b>" in "".join(parts.text)
    assert "<script>" not in error_message(HOSTILE)


def test_maps_of_both_models_share_one_color_scale(both):
    (_, first, image), (_, second, _) = both[0]

    def with_relevance(seen, value):
        values = np.full((4, 4), value, np.float32)
        maps = {key: Map(values, old.numbers) for key, old in seen.maps.items() if key[0] == "relevance"}
        return replace(seen, maps=seen.maps | maps)

    for strong, limit in ((0.4, "0.4"), (0.003, "0.02")):
        models = [(MODEL, with_relevance(*pair), image) for pair in ((first, strong), (second, 0.003))]
        html = render_looks(models, both[1], "relevance", 0.6)
        drawn = [part for part in Parts(html).having("src") if part.get("data-map") == "relevance"]
        faint = pixels(drawn[-1]["src"])[48, 48]
        # a relevance of 0.003 is dark and lets the image through, whatever values the other model has
        assert faint[:3].astype(int).sum() < 160
        assert html.count(f"<span>{limit}</span>") == 2
    assert pixels(drawn[0]["src"]).shape[2] == 4
    models = [(MODEL, with_relevance(*pair), image) for pair in ((first, 0.4), (second, 0.04))]
    html = render_looks(models, both[1], "relevance", 0.6, own_scale=True)
    assert (html.count("<span>0.4</span>"), html.count("<span>0.04</span>")) == (1, 1)


def test_missing_maps_and_lambdas_are_reported(both):
    html = render_looks(*both, "A2", 0.6)
    assert html.count("there is no A2") == 1
    assert html.count("No layer of this model has a λ of its own.") == 1
    assert "layer 2: " in html


def test_models_get_unique_names_and_colors(plain, differential):
    names = [model.name for model in page_models([("x/a", plain), ("y/a", plain)])]
    assert names == ["x/a (1)", "y/a (2)"]
    first, second = page_models([("x/a", plain), ("y/b", plain)])
    assert first.color != second.color
    assert page_models([("x/\udcff", differential)])[0].name == "\\udcff"


def test_texts_are_limited_in_number_and_length():
    assert parse_texts(" a  b\n\na b\nc\ud800") == ["a b", "c?"]
    for lines, reason in (
        (" \n", "no text yet"),
        ("\n".join(map(str, range(MAX_TEXTS + 1))), "33 texts are too many"),
        ("x" * (MAX_LETTERS + 1), "301 characters is too long"),
    ):
        with pytest.raises(InputError, match=reason):
            parse_texts(lines)


def test_inputs_have_labels_and_models_run_one_request_at_a_time(plain, differential):
    page = build(page_models([("x/Plain", plain), ("x/Differential", differential)]))
    for block in page.blocks.values():
        if isinstance(block, gradio.components.FormComponent | gradio.Image):
            assert block.label, block
    computed = [fn for fn in page.fns.values() if fn.concurrency_id == "models"]
    assert {fn.concurrency_limit for fn in computed} == {1}
    assert all(fn.api_visibility == "private" for fn in page.fns.values() if fn.fn)


def test_the_page_starts_on_ipv6_and_beside_a_proxy(plain):
    try:
        port = pick_port("::1", 0)
    except InputError:
        pytest.skip("this machine has no IPv6")
    others = {name: text for name, text in os.environ.items() if name.lower() != "no_proxy"}
    proxy = {"http_proxy": "http://127.0.0.1:1", "NO_PROXY": "example.org"}
    with (
        mock.patch.dict(os.environ, others | proxy, clear=True),
        serve_in_background([("x/Plain", plain)], "::1", port) as address,
    ):
        assert address == f"http://[::1]:{port}/"
        assert httpx.get(address).status_code == 200
        assert getproxies()["no"] == "::1,example.org"

"""Build the page, and connect its parts with their events."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr
from PIL import Image

from diffclip.data.images import read_image
from diffclip.errors import InputError
from diffclip.maps.attention_maps import visible_part
from diffclip.maps.view import METHODS, PAIR_MAPS
from diffclip.scenes import draw_scene
from diffclip.scenes.captions import with_article
from diffclip.scenes.vocabulary import COLORS, SHAPES
from diffclip.web.look import look
from diffclip.web.results import PageModel, error_message, image_uri, render_looks

MAX_MEGABYTES, MAX_PIXELS = 20, 25_000_000  # limits of an uploaded image
MAX_TEXTS, MAX_LETTERS = 32, 300
_WAITING = 32  # maximum number of waiting requests; gradio answers further requests that the queue is full
_OPACITY, _THUMBNAIL, _IMAGE_EDGE = 60, 96, 480

_SCENES = (22, 4, 17, 30, 43, 47, 25, 6)
"""Scenes of the test split, which no recipe trains on: each has two objects or more; all seven backgrounds occur."""
_SCENE_SIZE, _ABSENT_TEXTS = 256, 2

_FOLDER = Path(__file__).parent
STYLE = (_FOLDER / "style.css").read_text(encoding="utf-8")
SCRIPT = (_FOLDER / "page.js").read_text(encoding="utf-8")
_SHOW = "(text, method, opacity) => window.diffclipShow(text, method, opacity)"
# one request computes at a time, because threads must not share a model
_COMPUTED: dict[str, Any] = {
    "concurrency_id": "models",
    "concurrency_limit": 1,
    "api_visibility": "private",
    "show_progress": "minimal",
}
_QUICK = _COMPUTED | {"concurrency_id": "quick", "concurrency_limit": 4, "show_progress": "hidden"}


class ExampleScene(NamedTuple):
    """A built-in scene. `texts` name its objects and two absent ones."""

    name: str
    image: Image.Image
    texts: list[str]


@cache
def example_scenes() -> list[ExampleScene]:
    """Draw the scenes to choose from on the page."""
    scenes = []
    for index in _SCENES:
        scene = draw_scene(index, split="test", size=_SCENE_SIZE)
        kinds = list(dict.fromkeys(f"{thing.color} {thing.shape}" for thing in scene.objects))
        colors = [name for name in COLORS if name not in {thing.color for thing in scene.objects}]
        shapes = [name for name in SHAPES if name not in {thing.shape for thing in scene.objects}]
        absent = [f"{colors[k]} {shapes[k]}" for k in range(_ABSENT_TEXTS)]
        texts = [with_article(kind) for kind in kinds + absent]
        name = f"{', '.join(kinds)} on {scene.background}"
        scenes.append(ExampleScene(name, Image.fromarray(scene.image), texts))
    return scenes


def build(models: Sequence[PageModel]) -> gr.Blocks:
    """Build the page of one or two models with its events."""
    with gr.Blocks(title="DiffCLIP · explore", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        names = " and ".join(model.name for model in models)
        gr.HTML(
            f'<header class="dc-head"><h1>Where does it look?</h1><p>{escape(names)}: which text fits an image, which '
            "patches speak for it, and how far the attention spreads.</p></header>"
        )
        image = _make_inputs(models)
        # set on load: an initial value would be a file, and gradio removes files after a while (`delete_cache`)
        page.load(lambda: example_scenes()[0].image, None, image, **_QUICK)
    page.queue(max_size=_WAITING, default_concurrency_limit=1, api_open=False)
    return page


def parse_texts(lines: str) -> list[str]:
    """Split texts, one per line, without blank lines and repetitions. No text, more than `MAX_TEXTS`, or one longer
    than `MAX_LETTERS` raises `InputError`."""
    # JSON can hold halves of surrogate pairs, which cannot be encoded in an answer
    clean = lines.encode(errors="replace").decode()
    texts = list(dict.fromkeys(" ".join(line.split()) for line in clean.splitlines() if line.strip()))
    if not texts:
        raise InputError("no text yet: write one per line")
    if len(texts) > MAX_TEXTS:
        raise InputError(f"{len(texts)} texts are too many: up to {MAX_TEXTS}, one per line")
    if max(map(len, texts)) > MAX_LETTERS:
        raise InputError(f"a text of {max(map(len, texts))} characters is too long: up to {MAX_LETTERS}")
    return texts


def _make_inputs(models: Sequence[PageModel]) -> gr.Image:
    """Make the fields, the results and their events, and return the field of the image."""
    scenes = example_scenes()
    first_texts = "\n".join(scenes[0].texts)
    thumbs = "".join(
        f"#dc-scenes label:nth-child({number})"
        f"{{background-image:url({image_uri(scene.image.resize((_THUMBNAIL, _THUMBNAIL)))})}}"
        for number, scene in enumerate(scenes, start=1)
    )
    with gr.Row():
        with gr.Column(min_width=300):
            image = gr.Image(
                label=f"Image, up to {MAX_MEGABYTES} MB and {MAX_PIXELS // 10**6} megapixels",
                type="filepath",
                sources=["upload", "clipboard"],
                buttons=[],
                height=300,
                elem_id="dc-upload",
            )
            # the value is the path of the uploaded file, which gradio then does not decode
            image.preprocess = lambda payload: None if payload is None else payload.path
        with gr.Column(min_width=300):
            gr.HTML(f"<style>{thumbs}</style>", elem_classes="dc-nothing")
            choices = [(scene.name, number) for number, scene in enumerate(scenes)]
            scene = gr.Radio(choices, value=0, label="Or a built-in scene", elem_id="dc-scenes")
            label = f"Texts, one per line, up to {MAX_TEXTS} (Shift+Enter looks)"
            texts = gr.Textbox(first_texts, label=label, lines=5, max_lines=8, elem_id="dc-texts")
            button = gr.Button("Look", variant="primary", elem_id="dc-look")
    notice = gr.HTML(elem_id="dc-notice")
    has_pairs = any(model.loaded.model.config.vision.is_differential for model in models)
    maps = [(title, name) for name, (title, _) in METHODS.items() if has_pairs or name not in PAIR_MAPS]
    with gr.Row():
        method = gr.Radio(maps, value="relevance", label="Map", min_width=320)
        label = "Opacity of the map, %"
        opacity = gr.Slider(0, 100, _OPACITY, step=1, label=label, min_width=320, elem_id="dc-opacity")
    towers = [model.loaded.model.config.vision for model in models]
    with gr.Row():
        label = "Vision layer (0: the last, LeGrad all; not for Rollout)"
        most = max(tower.layers for tower in towers)
        layer = gr.Slider(0, most, 0, step=1, label=label, min_width=320)
        label = "Head (0: all; not for Rollout)"
        most = max(tower.heads // (1 + tower.layer.pairs_heads) for tower in towers)
        head = gr.Slider(0, most, 0, step=1, label=label, min_width=320, elem_id="dc-head")
        label = "Each model on a scale of its own"
        own_scale = gr.Checkbox(label=label, min_width=320, visible=len(models) > 1, elem_id="dc-scale")

    def see(
        path: str | None,
        number: int | None,
        lines: str,
        method: str,
        opacity: float,
        layer: int = 0,
        head: int = 0,
        own_scale: bool = False,
    ) -> tuple[Any, ...]:
        texts = parse_texts(lines)
        if number is not None:
            image = scenes[number].image
        elif path:
            image = read_image(path, Path(path).name, MAX_PIXELS)
        else:
            raise InputError("no image yet: drop one, or choose a scene")
        edge = min(_IMAGE_EDGE, max(32, min(image.size)))
        looks = []
        for model in models:
            own = look(model.loaded, image, texts, int(layer) or None, int(head) or None)
            looks.append((model, own, visible_part(image, model.loaded.preprocess, edge)))
        html = render_looks(looks, texts, method, opacity / 100, own_scale)
        return "", html, gr.update(choices=[(text, index) for index, text in enumerate(texts)], value=0)

    run = _with_notice(see)
    text_choices = [(text, index) for index, text in enumerate(scenes[0].texts)]
    choice = gr.Radio(text_choices, value=0, label="Text that the map is for", elem_id="dc-choice")
    cards = gr.HTML(run(None, 0, first_texts, "relevance", _OPACITY)[1], elem_id="dc-results")

    inputs, outputs = [image, scene, texts, method, opacity, layer, head, own_scale], [notice, cards, choice]
    controls = [choice, method, opacity]

    def take(number: int) -> tuple[Image.Image, str]:
        return scenes[number].image, "\n".join(scenes[number].texts)

    image.clear(lambda: (None, "", ""), None, [scene, notice, cards], **_QUICK)
    chosen_scene = scene.input(take, scene, [image, texts], **_QUICK)
    uploaded = image.upload(lambda: None, None, scene, **_QUICK)
    changed = (layer.release, head.release, own_scale.input)
    for event in (chosen_scene.then, uploaded.then, button.click, texts.submit, *changed):
        event(run, inputs, outputs, **_COMPUTED).then(None, controls, None, js=_SHOW)
    for control in controls:
        control.change(None, controls, None, js=_SHOW)
    return image


def _with_notice(run: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Wrap `run`: an error becomes the notice, empties the results, and leaves the choice of texts."""

    def running(*values: Any) -> tuple[Any, ...]:
        try:
            return run(*values)
        except InputError as error:
            line = str(error)
        except Exception as error:
            print(f"diffclip: a request failed: {type(error).__name__}: {error}", file=sys.stderr)
            line = f"this could not be computed ({type(error).__name__}): the terminal says more"
        return error_message(line), "", gr.skip()

    return running

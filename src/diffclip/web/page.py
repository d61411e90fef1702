"""The page: its parts, and what happens when they are used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from diffclip.web.folder import SearchedFolder
from diffclip.web.look import METHODS, PAIR_MAPS
from diffclip.web.markup import escape, message, too_large
from diffclip.web.overlay import photo_uri, thumbnail
from diffclip.web.studio import Studio, told_by
from diffclip.web.upload_field import Upload
from diffclip.web.uploads import MAX_BYTES, MAX_LETTERS, MAX_PIXELS, MAX_TEXTS

_HERE = Path(__file__).parent
_WAITING = 32
"""Requests that wait for their turn; more are told to come back."""
_OPACITY = 60
_TOP = (12, 48)
_THUMB = 96

STYLE = (_HERE / "style.css").read_text(encoding="utf-8")
SCRIPT = (_HERE / "page.js").read_text(encoding="utf-8")
_SHOW = "(text, method, opacity) => window.diffclipShow(text, method, opacity)"


def build(studio: Studio) -> gr.Blocks:
    """The page with its events; `serve` makes it reachable."""
    with gr.Blocks(title="DiffCLIP · explore", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        names = " and ".join(shown.name for shown, _ in studio.models)
        gr.HTML(
            f'<header class="dc-head"><h1>Where does it look?</h1><p>{escape(names)}: which text fits a '
            "picture, which patches speak for it, and how far the attention spreads.</p></header>"
        )
        with gr.Tab("See"):
            picture = _see(studio)
        with gr.Tab("Search"):
            status = _search(studio)
        # not its first value: that would be a file, and files are removed after a while
        loaded = [picture] if status is None else [picture, status]
        # one event for both: of two at once, gradio's script may miss the answer of the second
        page.load(lambda: _loaded(studio), None, loaded, **_QUICK)
    page.queue(max_size=_WAITING, default_concurrency_limit=1, api_open=False)
    return page


def _loaded(studio: Studio) -> Any:
    """What is new for each visitor: the first picture, and how far the searched folder's indexes are."""
    picture = studio.scenes[0].picture
    return picture if studio.folder is None else (picture, _status(studio.folder))


def _see(studio: Studio) -> Upload:
    first = studio.scenes[0]
    thumbs = "".join(
        f"#dc-scenes label:nth-child({number}){{background-image:url({photo_uri(thumbnail(scene.picture, _THUMB))})}}"
        for number, scene in enumerate(studio.scenes, start=1)
    )
    with gr.Row(elem_classes="dc-inputs"):
        with gr.Column(min_width=300):
            picture = Upload(
                label=f"Picture, up to {MAX_BYTES // 2**20} MB and {MAX_PIXELS // 10**6} megapixels",
                type="filepath",
                sources=["upload", "clipboard"],
                buttons=[],
                height=300,
                elem_id="dc-upload",
                alt_text="The chosen picture",
            )
            gr.HTML(too_large())
        with gr.Column(min_width=300):
            gr.HTML(f"<style>{thumbs}</style>", elem_classes="dc-nothing")
            scene = gr.Radio(
                [(one.name, index) for index, one in enumerate(studio.scenes)],
                value=0,
                label="Or a built-in scene",
                elem_id="dc-scenes",
            )
            texts = gr.Textbox(
                "\n".join(first.texts),
                label=f"Texts, one a line, up to {MAX_TEXTS} (Shift+Enter looks)",
                lines=5,
                max_lines=8,
                max_length=MAX_TEXTS * (MAX_LETTERS + 1),
                elem_id="dc-texts",
            )
            button = gr.Button("Look", variant="primary", elem_id="dc-look")
    told = gr.HTML(elem_id="dc-told")
    differential = any(loaded.model.config.vision.attention == "differential" for _, loaded in studio.models)
    with gr.Row(elem_classes="dc-controls"):
        method = gr.Radio(
            [(title, name) for name, title in METHODS.items() if differential or name not in PAIR_MAPS],
            value="relevance",
            label="Map",
            min_width=320,
            elem_id="dc-method",
        )
        opacity = gr.Slider(
            0, 100, _OPACITY, step=1, label="Opacity of the map, %", min_width=320, elem_id="dc-opacity"
        )
    started = told_by(lambda: studio.look(None, 0, "\n".join(first.texts), "relevance", _OPACITY), 3)
    choice = gr.Radio(
        [(text, index) for index, text in enumerate(first.texts)],
        value=0,
        label="Text that the map is for",
        elem_id="dc-choice",
    )
    shown = gr.HTML(started[1], elem_id="dc-results")

    inputs, outputs = [picture, scene, texts, method, opacity], [told, shown, choice]
    visible = [choice, method, opacity]

    def run(*values: Any) -> tuple[Any, ...]:
        return told_by(lambda: studio.look(*values), 3)

    def take(index: int | None) -> tuple[Any, Any]:
        if index is None:
            return gr.skip(), gr.skip()
        return studio.scenes[index].picture, "\n".join(studio.scenes[index].texts)

    listeners = [
        button.click(run, inputs, outputs, **_COMPUTED),
        texts.submit(run, inputs, outputs, **_COMPUTED),
    ]
    scene.input(take, scene, [picture, texts], **_QUICK).then(run, inputs, outputs, **_COMPUTED).then(
        None, visible, None, js=_SHOW
    )
    picture.upload(lambda: None, None, scene, **_QUICK).then(run, inputs, outputs, **_COMPUTED).then(
        None, visible, None, js=_SHOW
    )
    picture.clear(lambda: (None, "", ""), None, [scene, told, shown], **_QUICK)
    for listener in listeners:
        listener.then(None, visible, None, js=_SHOW)
    for control in (choice, method, opacity):
        control.change(None, visible, None, js=_SHOW)
    return picture


def _search(studio: Studio) -> gr.HTML | None:
    """The part to search with; the line on the indexes."""
    if studio.folder is None:
        gr.HTML(
            message("Start the page with --folder PICTURES to search a folder by text or picture.", bad=False)
        )
        return None
    folder = studio.folder
    names = [shown.name for shown, _ in studio.models]
    with gr.Row(elem_classes="dc-inputs"):
        with gr.Column(min_width=300):
            query = gr.Textbox(
                label="Text to search for",
                max_length=MAX_LETTERS,
                elem_id="dc-query",
                placeholder="a dog on a beach",
            )
            model = gr.Radio(
                names, value=names[-1], label="Model", visible=len(names) > 1, elem_id="dc-model"
            )
            top = gr.Slider(1, _TOP[1], _TOP[0], step=1, label="How many", elem_id="dc-top")
            button = gr.Button("Search", variant="primary", elem_id="dc-search")
        with gr.Column(min_width=300):
            example = Upload(
                label="Or a picture like those to find",
                type="filepath",
                sources=["upload", "clipboard"],
                buttons=[],
                height=240,
                elem_id="dc-example",
            )
            gr.HTML(too_large())
    status = gr.HTML(elem_id="dc-status")
    told = gr.HTML(elem_id="dc-found")
    found = gr.HTML(elem_id="dc-gallery")
    timer = gr.Timer(2.0)
    inputs, outputs = [query, example, model, top], [told, found]

    def run(*values: Any) -> tuple[Any, ...]:
        return told_by(lambda: studio.search(*values), 2)

    button.click(run, inputs, outputs, **_COMPUTED)
    query.submit(run, inputs, outputs, **_COMPUTED)
    example.upload(run, inputs, outputs, **_COMPUTED)
    timer.tick(lambda: (_status(folder), gr.Timer(active=folder.updating)), None, [status, timer], **_QUICK)
    return status


_COMPUTED: dict[str, Any] = {
    "concurrency_id": "models",
    "concurrency_limit": 1,
    "api_visibility": "private",
    "show_progress": "minimal",
}
_QUICK: dict[str, Any] = {
    "concurrency_id": "quick",
    "concurrency_limit": 4,
    "api_visibility": "private",
    "show_progress": "hidden",
}


def _status(folder: SearchedFolder) -> str:
    return f'<p class="dc-hint">{escape(folder.folder.name)}: {escape(folder.status())}</p>'

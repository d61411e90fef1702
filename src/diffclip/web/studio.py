"""What the page computes: looks at a picture, searches in a folder, and the messages of what goes wrong."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from diffclip.errors import InputError
from diffclip.model_source import Loaded
from diffclip.web.decoding import Decoder
from diffclip.web.folder import SearchedFolder
from diffclip.web.look import look, visible_part
from diffclip.web.markup import Shown, gallery, message, results
from diffclip.web.scenes import ShownScene, shown_scenes
from diffclip.web.uploads import parse_texts, read_upload

_PICTURE_EDGE = 480


@dataclass(frozen=True)
class Studio:
    """What the page works with. `turn` is held by what computes: a model is not for several threads."""

    models: Sequence[tuple[Shown, Loaded]]
    uploads: Path
    folder: SearchedFolder | None
    scenes: Sequence[ShownScene]
    decoder: Decoder
    turn: threading.Lock

    def look(
        self, path: str | None, scene: int | None, lines: str, method: str, opacity: float
    ) -> tuple[Any, Any, Any]:
        """The message, the results and the choice of texts for a picture, or for a scene where one is chosen."""
        texts = parse_texts(lines)
        with self.turn:
            chosen = None if scene is None else self.scenes[scene]
            picture = chosen.picture if chosen else read_upload(path, self.uploads, self.decoder.decode)
            masks = chosen.masks if chosen else None
            seen = [
                (shown, look(loaded, picture, texts, masks), _shown_part(picture, loaded))
                for shown, loaded in self.models
            ]
            html = results(seen, texts, method, opacity / 100, chosen is not None)
        choice = gr.update(choices=[(text, index) for index, text in enumerate(texts)], value=0)
        return "", html, choice

    def search(self, query: str, path: str | None, model: str, top: int) -> tuple[str, str]:
        """The message and the results of a search by picture, if there is one, else by text."""
        if self.folder is None:
            raise InputError("no folder to search: start the page with --folder PICTURES")
        text = "" if path else parse_texts(query)[0]
        with self.turn:
            asked = read_upload(path, self.uploads, self.decoder.decode) if path else text
            hits = self.folder.search(model, asked, int(top))
        if hits:
            more = " among the pictures indexed so far" if self.folder.updating else ""
            return message(f"The nearest{more}, by {model}", bad=False), gallery(hits)
        if self.folder.updating:
            raise InputError("no picture is indexed yet: try again in a moment")
        raise InputError("the index is empty: see the line above")


def _shown_part(picture: Image.Image, loaded: Loaded) -> Image.Image:
    return visible_part(picture, loaded.preprocess, min(_PICTURE_EDGE, max(32, min(picture.size))))


def new_studio(
    models: Sequence[tuple[Shown, Loaded]], uploads: Path, folder: SearchedFolder | None, decoder: Decoder
) -> Studio:
    """A studio with the built-in scenes."""
    return Studio(models, uploads, folder, shown_scenes(), decoder, threading.Lock())


def told_by(run: Callable[[], tuple[Any, ...]], outputs: int) -> tuple[Any, ...]:
    """What `run` gives, or a message in the first of as many outputs, the second empty and the rest as they are."""
    try:
        return run()
    except InputError as error:
        line = str(error)
    except Exception as error:
        print(f"diffclip: a request failed: {type(error).__name__}: {error}", file=sys.stderr)
        line = f"this could not be computed ({type(error).__name__}): the terminal says more"
    return (message(line), "", *[gr.skip()] * (outputs - 2))

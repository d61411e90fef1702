"""gradio's picture field without its own decoding."""

from __future__ import annotations

from abc import ABCMeta
from typing import Any

import gradio as gr


class _NoStub(type(gr.Image)):  # type: ignore[misc]
    """gradio's own metaclass writes a stub beside the module of each new kind of field, wherever it is installed."""

    def __new__(mcs, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> Any:
        return ABCMeta.__new__(mcs, name, bases, attributes)


class Upload(gr.Image, metaclass=_NoStub):  # type: ignore[misc]
    """A picture field whose value is the path of the uploaded file; nobody has opened it before."""

    is_template = True

    def preprocess(self, payload: Any) -> str | None:
        return None if payload is None else payload.path

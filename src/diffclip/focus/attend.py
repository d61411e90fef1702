"""Pictures × texts × models: the maps of each, as arrays to draw or to keep.

Shapes: P pictures, B of them at once, T texts, L tokens, S picture size, D joint width, N tokens of a picture (the
class token and h · w patches).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from diffclip.attention import AttentionMaps
from diffclip.data.transforms import EvalTransform
from diffclip.errors import InputError, unknown
from diffclip.files import printable
from diffclip.focus.maps import as_patches
from diffclip.focus.recording import pictures_at_once, recording
from diffclip.focus.relevance import gradients, relevance_of, text_relevance
from diffclip.focus.rollout import rollout
from diffclip.model import CLIP
from diffclip.tokenizer import Tokenizer

Prepared = tuple[CLIP, EvalTransform, Tokenizer]
Array = npt.NDArray[np.float32]

METHODS = {
    "relevance": "what in the picture speaks for each text",
    "rollout": "which patches reach the class token if layers only mixed",
    "attention": "the class token's row of A, or of A1 − λ·A2",
    "A1": "the class token's row of the first map",
    "A2": "the class token's row of the second map, the subtracted one",
}
"""What each shows."""
_BATCH = 16


@dataclass(frozen=True)
class Attended:
    """What one model makes of P pictures and T texts; for a method that knows no text T is 0."""

    maps: Array
    """[P, max(T, 1), h, w]: ≥ 0, but for the attention of differential layers, which has a sign."""
    cosines: Array
    """[P, T] of the picture's feature and the text's."""
    probabilities: Array
    """[P, T]: softmax of the logits over the T texts."""
    pieces: list[list[str]]
    """The tokens of each text between its start and its end, as `Tokenizer.pieces`."""
    spoken: Array
    """The relevance of these tokens, [P, T, L] ≥ 0; L is the length of the longest text, 0 past the end of others."""


def attend(
    models: Mapping[str, Prepared],
    pictures: Iterable[Image.Image],
    texts: Sequence[str] = (),
    method: str = "relevance",
    layers: str | None = None,
) -> dict[str, Attended]:
    """The maps of each model for each picture and text.

    Args:
        models: by the name that errors call them; evaluated where they are, and left as they were.
        pictures: RGB, gone through once, a few held at a time.
        texts: at least one for "relevance"; the other methods know none.
        method: one of `METHODS`.
        layers: of which vision layers, "last", "all" or the number of one, counted from 1. Relevance and rollout go
            through them in order of depth; of attention it is the mean. None: "all" for rollout, else "last".
            The relevance of tokens goes through all text layers for "all", else through the last.

    Raises:
        InputError: unknown method or layer, no model, no picture, no text or one too many, a text that is not Unicode,
            a second map of a plain tower, weights that give no finite numbers.
    """
    check_request(method, texts)
    if not models:
        raise InputError("there is no model: give at least one")
    layers = layers_of(method, layers)
    # whatever mode the caller is in: what is made here is differentiated
    with torch.inference_mode(False), torch.no_grad():
        readers = {name: _Reader(name, loaded, texts, method, layers) for name, loaded in models.items()}
        parts: dict[str, list[_Part]] = {name: [] for name in models}
        rest = iter(pictures)
        at_once = min(pictures_at_once(reader.model, reader.first) for reader in readers.values())
        while batch := list(islice(rest, min(_BATCH, at_once))):
            for name, reader in readers.items():
                parts[name].append(reader.read(batch))
    if not any(parts.values()):
        raise InputError("there is no picture to attend to: give at least one")
    return {name: reader.joined(parts[name]) for name, reader in readers.items()}


def check_request(method: str, texts: Sequence[str]) -> None:
    """Find out before models are loaded whether the method exists and has the texts that it needs.

    Raises:
        InputError: it does not or has not, or a text has bytes that were not UTF-8 where it came from.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if method == "relevance" and not texts:
        raise InputError('relevance is for a text: give at least one, as in --text "a dog"')
    if method != "relevance" and texts:
        raise InputError(f"{method} knows no text: leave --text out, or use --method relevance")
    for text in texts:
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise InputError(f"the text '{printable(text)}' is not UTF-8: write it in that encoding")


def layers_of(method: str, layers: str | None) -> str:
    """The layers that `attend` takes for `method` where none are given."""
    return layers or ("all" if method == "rollout" else "last")


_Part = tuple[Array, Array, Array]


class _Reader:
    """One model with what its maps are to be for: pictures to their maps, cosines and relevance of tokens."""

    def __init__(self, name: str, loaded: Prepared, texts: Sequence[str], method: str, layers: str) -> None:
        self.name, self.method = name, method
        self.model, self.preprocess, tokenizer = loaded
        if method in ("A1", "A2") and self.model.config.vision.attention == "softmax":
            raise InputError(f"{name} makes one map a head, no {method}: use --method attention")
        self.first, self.last = _range(self.model, name, layers)
        self.first_text = 0 if layers == "all" else -1
        self.pieces = tokenizer.pieces(texts) if texts else []
        longest = max(map(len, self.pieces), default=0)
        if texts:
            # a causal tower reads nothing past the end of text
            self.tokens = tokenizer(texts)[:, : longest + 2].to(self.model.logit_scale.device)
            with recording(self.model, "text", -1):
                self.texts = self.model.encode_text(self.tokens, normalize=True)

    def read(self, pictures: Sequence[Image.Image]) -> _Part:
        """Maps [B, max(T, 1), h, w], cosines [B, T], relevance of tokens [B, T, L]."""
        weight = self.model.logit_scale
        images = torch.stack([self.preprocess(picture) for picture in pictures])
        images = images.to(weight.device, weight.dtype)
        return self._relevance(images) if self.method == "relevance" else self._attention(images)

    def _relevance(self, images: Tensor) -> _Part:
        with recording(self.model, "visual", self.first, gradients=True) as seen:
            features = self.model.encode_image(images, normalize=True)
            cosines = features @ self.texts.T
            logits = self.model.logit_scale.detach().exp() * cosines
            chosen = seen[: self.last - self.first]
            rows = [relevance_of(chosen, gradients(logit, chosen))[:, 0, 1:] for logit in logits.unbind(1)]
        spoken = text_relevance(self.model, self.tokens, features, self.first_text)
        return (
            _array(as_patches(torch.stack(rows, 1))),
            _array(cosines),
            _array(spoken[..., 1:-1].transpose(0, 1)),
        )

    def _attention(self, images: Tensor) -> _Part:
        with recording(self.model, "visual", self.first) as seen:
            self.model.encode_image(images)
        chosen = seen[: self.last - self.first]
        if self.method == "rollout":
            row = rollout(chosen)[:, 0, 1:]
        else:
            row = torch.stack([_map(one, self.method).mean(1)[:, 0, 1:] for one in chosen]).mean(0)
        nothing = np.empty((len(images), 0), np.float32)
        return _array(as_patches(row[:, None])), nothing, nothing[..., None]

    def joined(self, parts: Sequence[_Part]) -> Attended:
        maps, cosines, spoken = (np.concatenate(kind) for kind in zip(*parts, strict=True))
        if not all(np.isfinite(values).all() for values in (maps, cosines, spoken)):
            raise InputError(f"{self.name} gives numbers that are not finite: use other weights")
        logits = torch.from_numpy(cosines) * self.model.logit_scale.detach().float().cpu().exp()
        return Attended(maps, cosines, logits.softmax(-1).numpy(), self.pieces, spoken)


def _range(model: CLIP, name: str, layers: str) -> tuple[int, int]:
    """The vision layers that `layers` names, from the first to before the last."""
    depth = len(model.attention_layers()["visual"])
    if layers == "all":
        return 0, depth
    if layers == "last":
        return depth - 1, depth
    if not layers.isdecimal():
        raise InputError(f"layers {layers!r} is not last, all or the number of a layer, counted from 1")
    if not 1 <= int(layers) <= depth:
        raise InputError(f"{name} has no vision layer {layers}: they are numbered from 1 to {depth}")
    return int(layers) - 1, int(layers)


def _map(maps: AttentionMaps, method: str) -> Tensor:
    if method == "attention":
        return maps.combined
    return maps.first if maps.second is None or method == "A1" else maps.second


def _array(tensor: Tensor) -> Array:
    array: Array = tensor.detach().float().cpu().numpy()
    return array

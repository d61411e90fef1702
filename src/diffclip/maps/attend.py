"""Maps of every model for every image and text, as arrays to draw or to save.

Shapes: P images, B images of a batch, T texts, L tokens, S image size, D joint width, N tokens of an image (the class
token, registers and h · w patches).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from diffclip.errors import InputError
from diffclip.files import write_atomically
from diffclip.maps.attention_maps import as_patches, patch_part, rollout
from diffclip.maps.recording import images_at_once, recording
from diffclip.maps.relevance import check_head, image_relevances, text_relevance
from diffclip.maps.view import OF_TEXTS, PAIR_MAPS, View
from diffclip.model import CLIP
from diffclip.preprocess import EvalTransform
from diffclip.tokenizer import Tokenizer

Prepared = tuple[CLIP, EvalTransform, Tokenizer]
Array = npt.NDArray[np.float32]

_BATCH = 16


@dataclass(frozen=True)
class Attended:
    """The maps of one model for P images and T texts. T is 0 for a method without texts.

    Attributes:
        maps: [P, max(T, 1), h, w], ≥ 0; only the attention of differential layers is signed.
        cosines: [P, T], between the features of image and text.
        probabilities: [P, T], softmax of the logits over the T texts.
        pieces: the tokens of each text between its start and its end, see `Tokenizer.pieces`.
        spoken: the relevance of these tokens, [P, T, L] ≥ 0. L is the length of the longest text, and padding is 0.
    """

    maps: Array
    cosines: Array
    probabilities: Array
    pieces: list[list[str]]
    spoken: Array


def attend(
    models: Mapping[str, Prepared],
    images: Iterable[Image.Image],
    texts: Sequence[str] = (),
    view: View | None = None,
) -> dict[str, Attended]:
    """Make the maps of each model for each image and text.

    Args:
        models: one or more, by the name for error messages. Each runs on its own device and is left unchanged.
        images: RGB, one or more, read once and in batches.
        texts: for the methods in `OF_TEXTS`; the other methods take no text.

    Raises:
        InputError: as `View.resolved`; no such layer, head or patch; A1 or A2 of a plain tower; or weights that give
            numbers that are not finite.
    """
    view = (view or View()).resolved(texts)
    # the caller may be in inference mode, which allows no gradients of the maps
    with torch.inference_mode(False), torch.no_grad():
        readers = {name: _Reader(name, loaded, texts, view) for name, loaded in models.items()}
        parts: dict[str, list[_Part]] = {name: [] for name in models}
        remaining = iter(images)
        at_once = min(images_at_once(reader.model, reader.layers.start) for reader in readers.values())
        while batch := list(islice(remaining, min(_BATCH, at_once))):
            for name, reader in readers.items():
                parts[name].append(reader.read(batch))
    return {name: reader.joined(parts[name]) for name, reader in readers.items()}


_Part = tuple[Tensor, ...]  # maps [B, max(T, 1), h, w], cosines [B, T], relevance of tokens [B, T, L]


class _Reader:
    """One model and its texts: computes maps, cosines and relevance of tokens for batches of images."""

    def __init__(self, name: str, loaded: Prepared, texts: Sequence[str], view: View) -> None:
        self.name, self.method = name, view.method
        self.model, self.preprocess, tokenizer = loaded
        vision = self.model.config.vision
        side = vision.image_size // vision.patch_size
        if view.patch is not None and not all(1 <= index <= side for index in view.patch):
            raise InputError(
                f"{name} has no patch in row {view.patch[0]}, column {view.patch[1]}: both are numbered from 1 to "
                f"{side}"
            )
        self.token = 0 if view.patch is None else (view.patch[0] - 1) * side + view.patch[1] - 1 - side * side
        if self.method in PAIR_MAPS and not vision.is_differential:
            raise InputError(f"{name} makes one map per head, no {self.method}: use --method attention")
        self.head = None if view.head is None else view.head - 1
        self.layers = find_layers(self.model, name, view.layers)
        self.first_text = 0 if view.layers == "all" else -1
        self.pieces = tokenizer.pieces(texts) if texts else []
        longest = max(map(len, self.pieces), default=0)
        if texts:
            # a causal tower reads nothing past the end of text
            self.tokens = tokenizer(texts)[:, : longest + 2].to(self.model.logit_scale.device)
            with recording(self.model, "text", -1):
                self.texts = self.model.encode_text(self.tokens, normalize=True)

    def read(self, batch: Sequence[Image.Image]) -> _Part:
        images = torch.stack([self.preprocess(image) for image in batch]).to(self.model.logit_scale)
        outputs = self._relevance(images) if self.method in OF_TEXTS else self._attention(images)
        return tuple(output.detach().float().cpu() for output in outputs)

    def _relevance(self, images: Tensor) -> _Part:
        found = image_relevances(
            self.model,
            images,
            self.texts,
            methods=[self.method],
            layers=self.layers,
            head=self.head,
            name=self.name,
        )
        features = self.model.encode_image(images, normalize=True)
        spoken = text_relevance(self.model, self.tokens, features, self.first_text, self.method)
        return found[self.method], features @ self.texts.T, spoken[..., 1:-1].transpose(0, 1)

    def _attention(self, images: Tensor) -> _Part:
        with recording(self.model, "visual", self.layers.start) as recorded:
            self.model.encode_image(images)
        chosen = recorded[: len(self.layers)]
        check_head(chosen, self.head, self.name)
        if self.method == "rollout":
            row = rollout(chosen)[:, self.token]
        else:
            field = {"attention": "combined", "A1": "first", "A2": "second"}[self.method]
            maps: list[Tensor] = [getattr(layer, field) for layer in chosen]
            rows = [full.mean(1) if self.head is None else full[:, self.head] for full in maps]
            row = torch.stack(rows).mean(0)[:, self.token]
        empty = row.new_empty(len(images), 0)
        return as_patches(patch_part(row)[:, None]), empty, empty[..., None]

    def joined(self, parts: Sequence[_Part]) -> Attended:
        maps, cosines, spoken = (torch.cat(kind) for kind in zip(*parts, strict=True))
        if not all(values.isfinite().all() for values in (maps, cosines, spoken)):
            raise InputError(f"{self.name} gives numbers that are not finite: use other weights")
        shares = (cosines * self.model.logit_scale.detach().float().cpu().exp()).softmax(-1)
        return Attended(maps.numpy(), cosines.numpy(), shares.numpy(), self.pieces, spoken.numpy())


def find_layers(model: CLIP, name: str, layers: str) -> range:
    """Return the vision layers, counted from 0, that `layers` names: "all", "last" or a number from 1."""
    depth = model.config.vision.layers
    ranges = {"all": range(depth), "last": range(depth - 1, depth)}
    if layers in ranges:
        return ranges[layers]
    if not 1 <= int(layers) <= depth:
        raise InputError(f"{name} has no vision layer {layers}: they are numbered from 1 to {depth}")
    return range(int(layers) - 1, int(layers))


def write_arrays(
    path: Path, model_maps: Mapping[str, Attended], images: Sequence[str], texts: Sequence[str], method: str
) -> Path:
    """Write the maps of M models for P images and T texts as a file for `numpy.load`.

    The file holds `models` [M], `images` [P], `texts` [T], `method` and the raw maps of each model, `maps_0`, `maps_1`,
    …, float32 [P, T, h, w] (T is 1 for a method without texts). Texts add `cosines` and `probabilities` [M, P, T],
    `tokens` [M, T, L], padded with "", and `token_relevance` [M, P, T, L].
    """
    results = list(model_maps.values())
    arrays: dict[str, Any] = {"models": list(model_maps), "images": images, "method": method}
    arrays["texts"] = np.array(texts, np.str_)
    arrays |= {f"maps_{number}": result.maps for number, result in enumerate(results)}
    if texts:
        longest = max(result.spoken.shape[-1] for result in results)
        tokens = [[row + [""] * (longest - len(row)) for row in result.pieces] for result in results]
        gaps = [((0, 0), (0, 0), (0, longest - result.spoken.shape[-1])) for result in results]
        arrays |= {
            "cosines": np.stack([result.cosines for result in results]),
            "probabilities": np.stack([result.probabilities for result in results]),
            "tokens": np.array(tokens, dtype=np.str_),
            "token_relevance": np.stack(
                [np.pad(result.spoken, gap) for result, gap in zip(results, gaps, strict=True)]
            ),
        }
    # into an open file, because NumPy adds .npz to a path
    with write_atomically(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
    return path

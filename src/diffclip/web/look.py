"""One model's look at an image and texts: how well each text fits, where the model looks, and how focused it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from diffclip.errors import InputError
from diffclip.evaluation.embed import embed_texts
from diffclip.maps import measures
from diffclip.maps.attend import find_layers
from diffclip.maps.attention_maps import as_patches, patch_part, rollout
from diffclip.maps.recording import recording
from diffclip.maps.relevance import image_relevances
from diffclip.sources.load import Loaded


@dataclass(frozen=True)
class Map:
    """A map over the patches, [h, w], and its numbers.

    `numbers` holds measures of `diffclip.maps.measures` by name: entropy and effective_patches; top10 if there are
    more than ten patches; class_token (the share on the class token itself) for attention, A1 and A2. A map of zeros
    has at most class_token.
    """

    values: npt.NDArray[np.float32]
    numbers: dict[str, float]


@dataclass(frozen=True)
class Look:
    """The results of a model for an image and texts: `cosines`, `probabilities` by text, `maps` by (method, text).

    The text is None for a map that all texts share. `lambdas` is by tower, empty if the layers have no λ of their own.
    """

    cosines: list[float]
    probabilities: list[float]
    maps: dict[tuple[str, int | None], Map]
    lambdas: dict[str, list[float]]


def look(
    loaded: Loaded, image: Image.Image, texts: list[str], layer: int | None = None, head: int | None = None
) -> Look:
    """Show an RGB image and one or more texts to a model, which is left unchanged. One thread may use it at a time.

    Args:
        layer: the vision layer of the maps, from 1; None: the last, for LeGrad all. Rollout is always of all.
        head: one head of the layer, from 1; None: all.

    Raises:
        InputError: no such layer or head; or the model's numbers are not finite.
    """
    model = loaded.model
    pixels = loaded.preprocess(image)[None].to(model.logit_scale.device)
    features = embed_texts(model, loaded.tokenizer, texts).clone()  # embedded in inference mode
    layers = None if layer is None else find_layers(model, loaded.label, str(layer))
    index = None if head is None else head - 1
    relevances = image_relevances(model, pixels, features, layers=layers, head=index, name=loaded.label)
    with recording(model, "visual") as layer_maps:
        encoded = model.encode_image(pixels, normalize=True)
        chosen = layer_maps[-1 if layer is None else layer - 1]
        kinds = {"attention": chosen.combined}
        if chosen.second is not None:
            kinds |= {"A1": chosen.first, "A2": chosen.second}
        rows = {"rollout": rollout(layer_maps)[0, 0]}
        for name, full in kinds.items():
            rows[name] = (full[0].mean(0) if index is None else full[0, index])[0]
        cosines = (encoded.float() @ features.T)[0]
        probabilities = (model.logit_scale.exp() * cosines).softmax(-1)
    if not all(numbers.isfinite().all() for numbers in (cosines, *relevances.values())):
        raise InputError(f"{loaded.weights} gives numbers that are not finite: use other weights")

    maps: dict[tuple[str, int | None], Map] = {}
    for name, relevance in relevances.items():
        for number in range(len(texts)):
            maps[name, number] = _measure_map(relevance[0, number].flatten(), {})
    for name, row in rows.items():
        row_numbers = {} if name == "rollout" else {"class_token": float(measures.class_token_share(row))}
        maps[name, None] = _measure_map(patch_part(row), row_numbers)
    lambdas = {tower: values.tolist() for tower, values in model.lambdas().items()}
    return Look(cosines.tolist(), probabilities.tolist(), maps, lambdas)


def _measure_map(values: Tensor, extra: dict[str, float]) -> Map:
    values = values.detach().float().cpu()
    numbers: dict[str, Tensor] = {}
    if values.any():
        numbers["entropy"] = measures.entropy(values)
        numbers["effective_patches"] = measures.effective_patches(values)
        if values.numel() > measures.STRONGEST:
            numbers["top10"] = measures.top(values)
    return Map(as_patches(values).numpy(), {name: float(number) for name, number in numbers.items()} | extra)

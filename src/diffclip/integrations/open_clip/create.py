"""Register our models with open_clip, and create them in place of its `create_model`.

open_clip takes configurations from outside (`add_model_config`) but no classes, and the function that picks the class
decides on the statistics of images too. So our configurations go into its registry, and one function of it,
`create_model`, is replaced by one that builds what has a configuration of ours and hands all else on.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from diffclip.config import MODEL_NAMES, CLIPConfig, name_of, named_config, parse_config, resized, variant_of
from diffclip.errors import InputError
from diffclip.integrations.open_clip.model import OpenCLIPModel
from diffclip.loading import locate
from diffclip.weights import check_same, put_weights, read_weights

_MODEL_KEY = "diffclip"  # of our configuration within open_clip's
_CALLERS = ("create_model_and_transforms", "create_model_from_pretrained")
_USED = {
    *("model_name", "pretrained", "load_weights", "precision", "device", "cache_dir", "output_dict"),
    *("force_patch_dropout", "force_image_size", "force_preprocess_cfg"),
    *("require_pretrained", "model_kwargs"),
}
# reading never runs code here, and no tower has weights of its own to start from
_WITHOUT_EFFECT = {"weights_only", "pretrained_image", "pretrained_text", "pretrained_hf"}
_STARTS = {"init_logit_scale": "logit_scale", "init_logit_bias": "logit_bias"}


def register(models: Mapping[str, CLIPConfig] | None = None) -> None:
    """Make every name in `MODEL_NAMES`, and those in `models`, a model of open_clip; a second call changes nothing.

    Raises:
        InputError: open_clip builds models in another way than is known here, or it has or misreads a name.
    """
    import open_clip
    from open_clip import factory

    parameters = inspect.signature(factory.create_model).parameters.keys()
    callers = [inspect.unwrap(getattr(factory, name, lambda: None)) for name in _CALLERS]
    if not parameters >= _USED or not all("create_model" in caller.__code__.co_names for caller in callers):
        raise InputError(
            f"open_clip_torch {version('open_clip_torch')} builds models in another way: "
            "run pip install 'open_clip_torch>=3.0,<=4.2'"
        )
    for name in models or {}:
        known = open_clip.get_model_config(name)
        if name in MODEL_NAMES or (known is not None and _MODEL_KEY not in known):
            raise InputError(f"open_clip has a model called {name} already: take another name")
        # its program guesses a loss and a tokenizer from "coca" and "siglip"
        if not re.fullmatch(r"[\w.+-]+", name) or re.search("siglip|coca", name.lower()):
            raise InputError(f"open_clip would misread the name {name!r}: take letters, digits, - . _ and +")
    with TemporaryDirectory() as folder:  # its files are read at once
        for name, config in ({name: named_config(name) for name in MODEL_NAMES} | dict(models or {})).items():
            (Path(folder) / f"{name}.json").write_text(json.dumps(_their_config(config)), encoding="utf-8")
        open_clip.add_model_config(folder)
    if not hasattr(factory.create_model, _MODEL_KEY):
        factory.create_model = open_clip.create_model = _extended(factory.create_model)


def _their_config(config: CLIPConfig) -> dict[str, Any]:
    """Return the sizes in open_clip's own words, for its code, and our whole configuration."""
    vision = ("image_size", "layers", "width", "patch_size", "mlp_ratio")
    text = ("context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio")
    return {
        "embed_dim": config.embed_dim,
        "vision_cfg": {key: getattr(config.vision, key) for key in vision}
        | {"head_width": config.vision.width // config.vision.heads},
        "text_cfg": {key: getattr(config.text, key) for key in text},
        _MODEL_KEY: config.model_dump(mode="json"),
    }


def _extended(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap their `create_model`: models with a configuration of ours are made here."""
    from open_clip import factory

    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def create_model(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        schema, name = factory.parse_model_name(given.arguments["model_name"])
        fields = None if schema else factory.get_model_config(name.replace("/", "-"))
        if not fields or _MODEL_KEY not in fields:
            return theirs(*args, **kwargs)
        defaults = {key: parameter.default for key, parameter in signature.parameters.items()}
        return _create(parse_config(fields[_MODEL_KEY], name), given.arguments, defaults)

    setattr(create_model, _MODEL_KEY, True)
    return create_model


def _create(named: CLIPConfig, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> OpenCLIPModel:
    """Make the model `named` with the arguments of `create_model`, on its device and in its dtype, in training mode."""
    name, size, starts = given["model_name"], given["force_image_size"], given["model_kwargs"]
    asked = {key for key, value in given.items() if key not in _USED and value != defaults[key]}
    if refused := (asked | starts.keys()) - _STARTS.keys() - _WITHOUT_EFFECT:
        raise InputError(f"{', '.join(sorted(refused))} cannot be given for {name}: leave it out")
    if not isinstance(size, int | None):
        if len(set(size)) != 1:
            raise InputError(f"force_image_size {tuple(size)} is not square: give one number")
        size = size[0]
    source = given["pretrained"]
    weights = read_weights(locate(source, given["cache_dir"])) if source and given["load_weights"] else None
    if weights is None and given["require_pretrained"]:
        raise InputError(f"{name} has no weights: give pretrained= a saved folder, a run folder or a file")
    config = named
    if weights is not None and weights.config is not None:
        config = weights.config
        if variant_of(named) == "custom":  # a name that does not tell which
            check_same(named, config, source)
        if name_of(config) != name_of(named):
            raise InputError(
                f"{source} holds {name_of(config)}, not {name_of(named)}: name {name_of(config)}"
            )
    fields = config.model_dump()
    fields["logit_bias"] |= starts.get("init_logit_bias") is not None
    if given["force_patch_dropout"] is not None:
        fields["vision"]["patch_dropout"] = given["force_patch_dropout"]
    config = parse_config(fields, f"what is forced on {name}")
    if weights is None and size is not None:
        config = resized(config, size)
    model = OpenCLIPModel(config)
    if weights is not None:
        state = dict(weights.state)
        if config.logit_bias:  # as in open_clip, a missing bias is 0
            state.setdefault("logit_bias", torch.zeros_like(model.logit_scale))
        put_weights(model, weights._replace(state=state), source)
    else:
        logging.warning(f"No pretrained weights loaded for model '{name}'. Model initialized randomly.")
        for key, parameter in _STARTS.items():
            if starts.get(key) is not None:
                torch.nn.init.constant_(model.get_parameter(parameter), starts[key])
    if size is not None and size != model.config.vision.image_size:
        model.set_image_size(size)
    _set_preprocess(model, name, given["force_preprocess_cfg"] or {})
    model.output_dict = bool(given["output_dict"])
    _cast(model, given["precision"], given["device"])
    return model


def _set_preprocess(model: OpenCLIPModel, name: str, forced: Mapping[str, Any]) -> None:
    """Give open_clip's transforms our statistics, and the configuration those that the caller asks for."""
    from open_clip import set_model_preprocess_cfg
    from open_clip.transform import PreprocessCfg, merge_preprocess_dict

    ours, size = model.config.preprocess, model.visual.image_size
    mode = "squash" if ours.resize == "squash" else "shortest"
    if ours.resize not in (None, "squash", size[0]):
        logging.warning(
            f"Model '{name}' is for images resized to {ours.resize}: open_clip resizes to {size[0]}."
        )
    fields = asdict(PreprocessCfg(size, "RGB", ours.mean, ours.std, ours.interpolation, mode))
    fields = merge_preprocess_dict(fields, forced)
    if fields["resize_mode"] != mode:
        raise InputError(f"resize_mode {fields['resize_mode']} cannot be given for {name}: leave it out")
    whole = model.config.model_dump()
    whole["preprocess"] |= {"mean": fields["mean"], "std": fields["std"]}
    if fields["interpolation"] != "random":
        whole["preprocess"]["interpolation"] = fields["interpolation"]
    model.config = parse_config(whole, f"what is forced on the images of {name}")
    set_model_preprocess_cfg(model, fields)


def _cast(model: OpenCLIPModel, precision: str, device: str | torch.device) -> None:
    """Cast everything but λ and the scalars: in bfloat16 a step of training is too small to change a scale of 14."""
    from open_clip import get_input_dtype

    model.to(device=device, dtype=get_input_dtype(precision))
    for scalar in (model.logit_scale, model.logit_bias):
        if scalar is not None:
            scalar.data = scalar.data.float()

"""Our models in open_clip (mlfoundations/open_clip): by name in its functions, and in its training program.

from diffclip.integrations.open_clip import register
register()
model, preprocess_train, preprocess = open_clip.create_model_and_transforms("DiffCLIP-ViT-B-16")

python -m diffclip.integrations.open_clip --model DiffCLIP-ViT-B-16 --train-data …

open_clip takes configurations from outside (`add_model_config`) but no classes. Its function `create_model` picks the
class, and also the statistics of images. So `register` adds our configurations to open_clip's registry and replaces
`create_model`. The new function builds models with a configuration of ours and passes all other calls on.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from diffclip.config import (
    CLIPConfig,
    model_names,
    name_of,
    named_config,
    parse_config,
    resize_config,
    variant_of,
)
from diffclip.errors import DiffCLIPError, InputError, unknown_name
from diffclip.model import CLIP
from diffclip.sources.hub import locate
from diffclip.weights import CONFIG_KEY, Weights, check_same, put_weights, read_weights

_MODEL_KEY = "diffclip"  # key of our configuration in open_clip's
# arguments of `create_model` that have an effect; `model_kwargs` collects all others
_USED = {
    "model_name",
    "model_kwargs",
    "pretrained",
    "load_weights",
    "require_pretrained",
    "precision",
    "device",
    "cache_dir",
    "output_dict",
    "force_patch_dropout",
    "force_image_size",
    "force_preprocess_cfg",
}
# weights_only: our reader never runs code; the others: our towers have no separate pretrained weights
_WITHOUT_EFFECT = {"weights_only", "pretrained_image", "pretrained_text", "pretrained_hf"}
_STARTS = {"init_logit_scale": "logit_scale", "init_logit_bias": "logit_bias"}


def register(models: Mapping[str, CLIPConfig] | None = None) -> None:
    """Make every name in `model_names()` and in `models` a model of open_clip; a second call changes nothing. A version
    of open_clip that builds models in another way, or a name that is taken or would be misread, raises `InputError`."""
    import open_clip
    from open_clip import factory

    if not inspect.signature(factory.create_model).parameters.keys() >= _USED:
        raise InputError(
            f"open_clip_torch {version('open_clip_torch')} builds models in another way: "
            "run pip install 'open_clip_torch>=3.0,<=4.2'"
        )
    configs = {name: named_config(name) for name in model_names()}
    for name in models or {}:
        known = open_clip.get_model_config(name)
        if name in configs or (known is not None and _MODEL_KEY not in known):
            raise InputError(f"open_clip has a model called {name} already: take another name")
        if re.search("siglip|coca", name.lower()):
            raise InputError(f"open_clip would misread the name {name}, and take another loss: change it")
    with TemporaryDirectory() as folder:  # add_model_config reads the files at once
        for name, config in (configs | dict(models or {})).items():
            (Path(folder) / f"{name}.json").write_text(json.dumps(_their_config(config)), encoding="utf-8")
        open_clip.add_model_config(folder)
    if not hasattr(factory.create_model, _MODEL_KEY):
        factory.create_model = open_clip.create_model = _wrap_create_model(factory.create_model)


def run_command(arguments: Sequence[str]) -> int:
    """Run open_clip's training program with its own arguments; return the exit code, 1 if it printed an error and
    stopped.

    Raises:
        InputError: a part of the program is not installed, or open_clip has no such model.
        SystemExit: from the program's parser.
    """
    missing = [name for name in ("open_clip_train", "pandas", "webdataset") if find_spec(name) is None]
    if missing:
        raise InputError(f"this needs {', '.join(missing)}: run pip install 'open_clip_torch[training]'")
    import open_clip

    register()
    # imported here and by name, because the program is optional and has no types
    name = import_module("open_clip_train.params").parse_args(list(arguments)).model
    if open_clip.get_model_config(name) is None:
        raise unknown_name("model", name, open_clip.list_models(), "open_clip.list_models() has the names")
    return 1 if import_module("open_clip_train.main").main(list(arguments)) else 0


class OpenCLIPModel(CLIP):
    """One of our models for open_clip, with the parameters of `diffclip.CLIP` under the same names.

    The metadata of its state dict has the configuration. torch saves the metadata; readers of tensors do not see it.
    Weights show neither λ_init nor the heads of a plain tower, and open_clip's trainer saves no configuration.
    """

    def __init__(self, config: CLIPConfig) -> None:
        super().__init__(config)
        self.output_dict = False
        self.context_length = config.text.context_length
        self.vocab_size = config.text.vocab_size
        self.visual.image_size = (config.vision.image_size,) * 2
        if not config.logit_bias:
            self.register_parameter("logit_bias", None)
        module: Any = self  # the two methods below have no types
        module.register_state_dict_post_hook(_note_config)
        module.register_load_state_dict_pre_hook(_check_config)

    def set_image_size(self, image_size: int) -> None:
        """See `diffclip.CLIP.set_image_size`."""
        super().set_image_size(image_size)
        self.visual.image_size = (image_size,) * 2

    def set_grad_checkpointing(self, enable: bool = True, impl: str = "inline") -> None:
        """See `diffclip.CLIP.set_grad_checkpointing`; `impl`, an argument of open_clip 4.2, is always "inline"."""
        super().set_grad_checkpointing(enable)

    def forward(  # type: ignore[override]  # open_clip's argument names; one input is enough
        self, image: Tensor | None = None, text: Tensor | None = None
    ) -> dict[str, Tensor | None] | tuple[Tensor | None, ...]:
        """Return the unit-length features [B, embed_dim] of each input, the logit scale after exp (0-dim) and, if the
        model has one, the logit bias: a dict if `output_dict` is set, else a tuple."""
        out = {
            "image_features": None if image is None else self.encode_image(image, normalize=True),
            "text_features": None if text is None else self.encode_text(text, normalize=True),
            "logit_scale": self.logit_scale.exp(),
        }
        if self.config.logit_bias:
            out["logit_bias"] = self.logit_bias
        return out if self.output_dict else tuple(out.values())

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters that get no weight decay in timm's optimizers, besides all vectors."""
        return {"positional_embedding", *(f"visual.{name}" for name in self.visual.no_weight_decay())}


def _note_config(module: CLIP, state: object, prefix: str, metadata: dict[str, Any]) -> None:
    metadata[CONFIG_KEY] = module.config.model_dump_json()


def _check_config(module: CLIP, state: object, prefix: str, metadata: dict[str, Any], *_: object) -> None:
    """Refuse weights of another model that has the same shapes."""
    if CONFIG_KEY in metadata:
        saved = parse_config(json.loads(metadata[CONFIG_KEY]), "the checkpoint")
        check_same(module.config, saved, "the checkpoint")


def _their_config(config: CLIPConfig) -> dict[str, Any]:
    """Return a configuration for open_clip: the sizes under its own names, and our whole configuration."""
    vision = ("image_size", "layers", "width", "patch_size", "mlp_ratio")
    text = ("context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio")
    return {
        "embed_dim": config.embed_dim,
        "vision_cfg": {key: getattr(config.vision, key) for key in vision}
        | {"head_width": config.vision.width // config.vision.heads},
        "text_cfg": {key: getattr(config.text, key) for key in text},
        _MODEL_KEY: config.model_dump(mode="json"),
    }


def _wrap_create_model(theirs: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap open_clip's `create_model`, so that models with a configuration of ours are made here."""
    from open_clip import factory

    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def create_model(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        options, name = bound.arguments, bound.arguments["model_name"]
        schema, plain_name = factory.parse_model_name(name)
        fields = None if schema else factory.get_model_config(plain_name.replace("/", "-"))
        if not fields or _MODEL_KEY not in fields:
            return theirs(*args, **kwargs)
        changed = {key for key, value in options.items() if value != signature.parameters[key].default}
        if refused := ((changed - _USED) | options["model_kwargs"].keys()) - _STARTS.keys() - _WITHOUT_EFFECT:
            raise InputError(f"{', '.join(sorted(refused))} cannot be given for {name}: leave it out")
        return _create(name, parse_config(fields[_MODEL_KEY], name), options)

    setattr(create_model, _MODEL_KEY, True)
    return create_model


def _create(name: str, named: CLIPConfig, options: Mapping[str, Any]) -> OpenCLIPModel:
    """Make the model called `name` in training mode, by the arguments of `create_model`."""
    source, size = options["pretrained"], options["force_image_size"]
    if source and options["load_weights"]:
        weights = read_weights(locate(source, cache_dir=options["cache_dir"]))
        config = _config_of(weights, named, source)
    elif options["require_pretrained"]:
        raise InputError(f"{name} has no weights: give pretrained= a saved folder, a run folder or a file")
    else:
        weights, config = None, named if size is None else resize_config(named, size)
        logging.warning(f"No pretrained weights loaded for model '{name}'. Model initialized randomly.")
    given = {parameter: options["model_kwargs"].get(key) for key, parameter in _STARTS.items()}
    starts = {parameter: value for parameter, value in given.items() if value is not None}
    fields = config.model_dump()
    fields["logit_bias"] |= "logit_bias" in starts
    if options["force_patch_dropout"] is not None:
        fields["vision"]["patch_dropout"] = options["force_patch_dropout"]
    model = OpenCLIPModel(parse_config(fields, f"what is forced on {name}"))
    if weights is None:
        for parameter, value in starts.items():
            nn.init.constant_(model.get_parameter(parameter), value)
    else:
        state = dict(weights.state)
        if model.config.logit_bias:  # as in open_clip, a missing bias is 0
            state.setdefault("logit_bias", torch.zeros_like(model.logit_scale))
        put_weights(model, weights._replace(state=state), source)
        if size not in (None, model.config.vision.image_size):
            model.set_image_size(size)
    _set_preprocess(model, name, options["force_preprocess_cfg"] or {})
    model.output_dict = bool(options["output_dict"])
    _cast(model, options["device"], options["precision"])
    return model


def _config_of(weights: Weights, named: CLIPConfig, source: str) -> CLIPConfig:
    """Return the configuration of the weights, if they have one, else the one of the name."""
    if (config := weights.config) is None:
        return named
    if variant_of(named) == "custom":  # the name does not identify λ_init and attention
        check_same(named, config, source)
    if name_of(config) != name_of(named):
        raise InputError(f"{source} holds {name_of(config)}, not {name_of(named)}: name {name_of(config)}")
    return config


def _cast(model: OpenCLIPModel, device: Any, precision: str) -> None:
    """Move `model` and cast it; λ and the scalars of the logits stay float32, without a rounding."""
    from open_clip import get_input_dtype

    exact = {name: value.data for name, value in model.named_parameters() if name in _STARTS.values()}
    model.to(device=device, dtype=get_input_dtype(precision))
    # in bfloat16 a training step is too small to change a scale of 14
    for name, value in exact.items():
        scalar = model.get_parameter(name)
        scalar.data = value.to(scalar.device)


def _set_preprocess(model: OpenCLIPModel, name: str, forced: Mapping[str, Any]) -> None:
    """Give open_clip's transforms our image statistics, and write the caller's own into the configuration."""
    from open_clip import set_model_preprocess_cfg
    from open_clip.transform import PreprocessCfg, merge_preprocess_dict

    ours, size = model.config.preprocess, model.visual.image_size
    mode = "squash" if ours.resize == "squash" else "shortest"
    if ours.resize not in (None, "squash", size[0]):
        logging.warning(
            f"Model '{name}' is for images resized to {ours.resize}: open_clip resizes to {size[0]}."
        )
    theirs = asdict(PreprocessCfg(size, "RGB", ours.mean, ours.std, ours.interpolation, mode))
    theirs = merge_preprocess_dict(theirs, forced)
    if theirs["resize_mode"] != mode:
        raise InputError(f"resize_mode {theirs['resize_mode']} cannot be given for {name}: leave it out")
    fields = model.config.model_dump()
    random = theirs["interpolation"] == "random"  # in training alone
    kept = ("mean", "std") if random else ("mean", "std", "interpolation")
    fields["preprocess"] |= {key: theirs[key] for key in kept}
    model.config = parse_config(fields, f"what is forced on the images of {name}")
    set_model_preprocess_cfg(model, theirs)


if __name__ == "__main__":
    try:
        sys.exit(run_command(sys.argv[1:]))
    except DiffCLIPError as error:
        print(f"diffclip: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

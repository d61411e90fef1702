"""Read and write weights: published `.pt` files, safetensors, and saved folders.

A saved folder holds `config.json` (the model's configuration with its image and text preparation) and
`model.safetensors` (our names). Reading is strict and never resizes.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from diffclip.config import CLIPConfig, name_of, parse_config
from diffclip.errors import InputError, explain_errors
from diffclip.files import checkpoint_of, write_atomically, write_text
from diffclip.initialisation import published_norm_eps
from diffclip.published import from_published, infer_config, is_published, to_published
from diffclip.tensors import first_names, read_tensors

if TYPE_CHECKING:
    from diffclip.model import CLIP

CONFIG_FILE, WEIGHTS_FILE, PUBLISHED_FILE = "config.json", "model.safetensors", "checkpoint_best.pt"
_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_ORIGIN = "origin"  # in config.json: facts about the training
CONFIG_KEY = "diffclip_config"  # in our files, and in the metadata that open_clip's trainer saves


def _find_weights(path: str | Path) -> Path:
    """Find the weights file of `path`: itself, or the file in a saved folder, a run folder or a folder of the hub."""
    path = checkpoint_of(path)
    if path.is_dir():
        files = [path / name for name in (WEIGHTS_FILE, PUBLISHED_FILE) if (path / name).is_file()]
        if not files:
            others = sorted(file.name for file in path.iterdir() if file.suffix in _SUFFIXES)
            advice = f"give {first_names(others)}, or open_clip:local-dir:{path} or transformers:{path}"
            advice = advice if others else "give a saved folder"
            raise InputError(f"{path} has neither {WEIGHTS_FILE} nor {PUBLISHED_FILE}: {advice}")
        path = files[0]
    if not path.exists():
        raise InputError(f"{path} does not exist: give a run folder, a saved folder or a weights file")
    with explain_errors(f"{path} cannot be read", "give a file that you may read"), path.open("rb") as handle:
        if not handle.read(1):
            raise InputError(f"{path} is empty: fetch it again")
    return path


class Weights(NamedTuple):
    """The contents of a weights file: the tensors under our names, whether the file had the published layout, and, if
    they were saved with it, the configuration and facts about the training (`label`, `seed`, `init`, `data`, `steps`).
    """

    state: dict[str, Tensor]
    published: bool = False
    config: CLIPConfig | None = None
    origin: Mapping[str, Any] = MappingProxyType({})


def read_weights(path: str | Path) -> Weights:
    """Read the weights file of `path`: itself, or the file in a saved folder, a run folder or a folder of the hub.

    A `config.json` is read only beside `model.safetensors`: beside other files it belongs to another program. Our files
    also have the configuration inside, so that they can be moved.
    """
    file = _find_weights(path)
    state, contents = read_tensors(file)
    published = is_published(state)
    config, origin = _config_of(file, contents)
    return Weights(from_published(state) if published else state, published, config, origin)


def _config_of(file: Path, contents: object) -> tuple[CLIPConfig | None, dict[str, Any]]:
    """Return the configuration and the origin beside the weights, else those in `contents` of their file."""
    config_file = file.with_name(CONFIG_FILE)
    if file.name == WEIGHTS_FILE and config_file.is_file():
        return _parse(config_file.read_bytes(), config_file)
    if not isinstance(contents, Mapping):
        return None, {}
    # open_clip's trainer keeps it in the metadata of the state dict
    metadata = getattr(contents.get("state_dict", contents), "_metadata", None)
    candidates = [contents, *(metadata.values() if isinstance(metadata, Mapping) else ())]
    texts = (candidate.get(CONFIG_KEY) for candidate in candidates if isinstance(candidate, Mapping))
    text = next((text for text in texts if isinstance(text, str)), None)
    return (None, {}) if text is None else _parse(text, file)


def _parse(text: str | bytes, file: Path) -> tuple[CLIPConfig, dict[str, Any]]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: lists nested too deeply
        raise InputError(f"the configuration in {file} is not JSON ({error}): save the model again") from None
    if not isinstance(fields, dict):
        raise InputError(f"{file} is not a model's configuration: save the model again")
    if "model_type" in fields:
        raise InputError(f"{file.parent} was saved by transformers: give transformers:{file.parent}")
    origin = fields.pop(_ORIGIN, None)
    known = origin.items() if isinstance(origin, dict) else ()
    kinds = {"label": str, "seed": int, "init": str, "data": str, "steps": int}
    facts = {name: value for name, value in known if isinstance(value, kinds.get(name, ()))}
    return parse_config(fields, str(file)), facts


def _config_text(model: CLIP, origin: Mapping[str, Any] | None, indent: int | None = None) -> str:
    fields = model.config.model_dump(mode="json") | ({_ORIGIN: dict(origin)} if origin else {})
    return json.dumps(fields, indent=indent, ensure_ascii=False)


def load_weights(model: CLIP, path: str | Path) -> CLIP:
    """Read weights into `model` and return it. A file in the published layout also sets the published LayerNorm
    epsilon, whatever the model's init was, and records it in `model.config`. A file with a configuration sets the
    epsilon and the image preparation of that configuration.

    Raises:
        InputError: unreadable weights, or weights for another model: the line lists what is missing, what is extra
            and which shapes differ, and names the model that would fit.
    """
    put_weights(_unwrapped(model), read_weights(path), path)
    return model


def _unwrapped(model: CLIP) -> CLIP:
    """Return the model inside the wrapper of `torch.compile`, if there is one."""
    return getattr(model, "_orig_mod", model)


def put_weights(model: CLIP, weights: Weights, source: str | Path) -> CLIP:
    """Put weights that have been read into `model`, as `load_weights` does; `source` names them in messages.

    A model on the device "meta" goes to the CPU if the weights fit.
    """
    state, published, config, _ = weights
    check_fit(model, state, source)
    if model.logit_scale.is_meta:
        model.to_empty(device="cpu")
    if config is not None:
        check_same(model.config, config, source)
        model.config.preprocess = config.preprocess.model_copy()
    model.load_state_dict(state)
    if config is not None and config.vision.norm_eps is not None:
        model.set_vision_norm_eps(config.vision.norm_eps)
    elif published:
        model.set_vision_norm_eps(published_norm_eps(model.config.vision))
    return model


def check_same(ours: CLIPConfig, config: CLIPConfig, source: str | Path) -> None:
    """Raise `InputError` if the weights' saved configuration differs in a setting that shapes do not show."""

    def facts(model_config: CLIPConfig) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for tower in ("vision", "text"):
            sizes = getattr(model_config, tower)
            fields |= {f"{tower} {key}": getattr(sizes, key) for key in ("attention", "heads", "activation")}
        options = {"lambda_init": model_config.lambda_init, **dict(model_config.differential)}
        return fields | {name: value for name, value in options.items() if name in config.layer_options}

    expected = facts(ours)
    found = facts(config).items()
    differing = [f"{key} {value} for {expected[key]}" for key, value in found if value != expected[key]]
    if differing:
        raise InputError(
            f"{source} holds weights for another model than {name_of(ours)}: {'; '.join(differing)}; "
            f"they fit {name_of(config)}"
        )


def check_fit(model: CLIP, state: Mapping[str, Tensor], source: str | Path) -> None:
    """Raise `InputError` unless names and shapes of `state` are exactly those of `model`."""
    expected = model.state_dict()
    pairs = [(name, state[name], expected[name]) for name in sorted(expected.keys() & state.keys())]
    faults = {
        "missing": sorted(expected.keys() - state.keys()),
        "extra": sorted(state.keys() - expected.keys()),
        "of another shape": [
            f"{name} {list(theirs.shape)} for {list(ours.shape)}"
            for name, theirs, ours in pairs
            if theirs.shape != ours.shape
        ],
        "quantized or integer": [
            f"{name} {str(theirs.dtype).removeprefix('torch.')}"
            for name, theirs, ours in pairs
            if ours.is_floating_point() and not (theirs.is_floating_point() and theirs.itemsize > 1)
        ],
    }
    if not any(faults.values()):
        return
    try:
        fitting = infer_config(state)
        hint = f"they fit {name_of(fitting)} at {fitting.vision.image_size} px"
    except InputError as error:
        hint = str(error)
    listed = "; ".join(
        f"{len(names)} {kind} ({first_names(names)})" for kind, names in faults.items() if names
    )
    raise InputError(
        f"{source} holds weights for another model than {name_of(model.config)}: {listed}; {hint}"
    )


def save_weights(
    model: CLIP,
    folder: str | Path,
    state: Mapping[str, Tensor] | None = None,
    origin: Mapping[str, Any] | None = None,
) -> None:
    """Write `config.json` and `model.safetensors` to `folder`, each file atomically. A disk error raises `InputError`.

    Args:
        state: the model's state dict if it has been gathered from several processes.
        origin: facts about the training, which `Weights.origin` has again.
    """
    model = _unwrapped(model)
    state = model.state_dict() if state is None else state
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    with write_atomically(Path(folder) / WEIGHTS_FILE) as temporary:
        save_tensors(state, temporary, {CONFIG_KEY: _config_text(model, origin)})
    write_text(Path(folder) / CONFIG_FILE, _config_text(model, origin, indent=2) + "\n")


def save_published(model: CLIP, file: str | Path, origin: Mapping[str, Any] | None = None) -> None:
    """Write a `.pt` file in the published layout: `state_dict` with `module.` before each name.

    The file also holds the configuration and `origin` as JSON text, so that nothing is lost when it is read again;
    other readers ignore it. A disk error raises `InputError`.
    """
    model = _unwrapped(model)
    state = to_published(model.state_dict(), model.config)
    contents = {
        "state_dict": {f"module.{name}": tensor.detach().cpu() for name, tensor in state.items()},
        CONFIG_KEY: _config_text(model, origin),
    }
    # if writing fails, torch leaves a file open that it opened itself; `with` closes ours
    with write_atomically(file) as temporary, temporary.open("wb", buffering=0) as handle:
        try:
            torch.save(contents, handle)
        except RuntimeError as error:  # of torch's writer, without an errno
            raise OSError(errno.EIO, "torch could not write it, perhaps for lack of space") from error


def save_tensors(tensors: Mapping[str, Tensor], file: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file with the permissions of the umask; the library itself lets only the owner read it."""
    try:
        save_file(dict(tensors), file, metadata=metadata)
    except SafetensorError as error:  # without an errno
        size = sum(tensor.nbytes for tensor in tensors.values())
        is_full = shutil.disk_usage(file.parent).free < size
        raise OSError(errno.ENOSPC if is_full else errno.EIO, str(error)) from error
    mask = os.umask(0)
    os.umask(mask)
    with suppress(OSError):  # file systems without permissions
        file.chmod(0o666 & ~mask)


def weights_digest(module: nn.Module) -> str:
    """Hash the names, types, shapes and bytes of a module's parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()

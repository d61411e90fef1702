"""Read the tensors of one model from a file of any origin, without running code from it.

The published checkpoints hold, beside their tensors, an `argparse.Namespace`, paths and NumPy scalars. These are
read through torch's restricted unpickler with an allow-list of exactly those types; anything else is refused.
"""

from __future__ import annotations

import argparse
import codecs
import pathlib
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from diffclip.errors import InputError, say_once

_USUAL_KEYS = ("state_dict", "model", "model_state_dict", "module", "net", "network", "weights")
_AVERAGED = re.compile(r"(^|(?<!exp)[._])(ema|swa|avg|averaged?)([._]|$)")
_INNER = re.compile(r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\.")
_OUTER = re.compile(r"^((module|model)\.)+")
_SCALE = re.compile(r"(.+\.|)logit_scale")
_NAMED = 4  # in a message


def read_tensors(file: Path) -> tuple[dict[str, Tensor], object]:
    """Read the weights of a model in a `.safetensors` or `.pt` file, without the prefixes of wrappers. Return also what
    lies beside them in the file, which may hold a configuration."""
    if file.suffix != ".safetensors":
        contents = _read_pickle(file)
        return _without_wrappers(_state_of(contents, file), file), contents
    try:
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata()
        return _without_wrappers(load_file(file), file), metadata
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file} is not a whole safetensors file ({error}): fetch it again") from None


def _allowed_globals() -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    scalar = np._core.multiarray.scalar  # type: ignore[attr-defined]
    dtypes = {type(np.dtype(code)) for code in "?bBhHiIlLqQefdU"}
    return [
        argparse.Namespace,
        np.dtype,
        *dtypes,
        # NumPy 1 wrote `numpy.core`, NumPy 2 writes `numpy._core`; a file may come from either
        (scalar, "numpy.core.multiarray.scalar"),
        (scalar, "numpy._core.multiarray.scalar"),
        (codecs.encode, "_codecs.encode"),
        # pure paths, because a path in a file is only a name, and may come from another kind of system
        *((pathlib.PurePosixPath, f"{module}.PosixPath") for module in ("pathlib", "pathlib._local")),
        *((pathlib.PureWindowsPath, f"{module}.WindowsPath") for module in ("pathlib", "pathlib._local")),
    ]


def _read_pickle(path: Path) -> Any:
    """Read the contents of a file written by `torch.save`, tensors on the CPU."""
    with torch.serialization.safe_globals(_allowed_globals()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about objects that it then refuses
        try:
            is_archive = zipfile.is_zipfile(path)
            if is_archive:
                with zipfile.ZipFile(path) as archive:
                    holds_code = any("/code/" in name for name in archive.namelist())
                if holds_code:
                    reason = "is a TorchScript archive, which holds code, as OpenAI's files are"
                    raise InputError(
                        str(path), reason, "give open_clip:ViT-B-32/openai, or a file of tensors"
                    )
            # files of torch < 1.6 are no archives and cannot be mapped
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
        except InputError:
            raise
        except PermissionError as error:
            raise InputError(f"{path} cannot be read ({error.strerror}): check its permissions") from None
        except Exception:  # of many kinds: whatever the first bytes mean as a pickle
            unsafe: list[str] = []
            with suppress(Exception):  # files of torch < 1.6 are not taken apart
                unsafe = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
            if unsafe:
                raise InputError(
                    f"{path} wants to run {unsafe[0]}: refused, ask its author for safetensors"
                ) from None
            raise InputError(
                f"{path} is not a file of torch.save, is damaged, or holds more than tensors: fetch it again, or ask "
                "its author for safetensors"
            ) from None


def _state_of(contents: object, file: Path) -> Mapping[str, Tensor]:
    """Find the weights in what `torch.save` wrote. Averaged weights are preferred, as in timm, and named."""
    try:
        states = dict(_states_in(contents))
    except RecursionError:
        raise InputError(f"{file} is nested too deeply: give a file with a model's weights") from None
    averaged = [key for key in states if _AVERAGED.search(key)]
    usual = [key for key in states if key.rpartition(".")[2] in _USUAL_KEYS]
    chosen = averaged or usual or list(states)
    if not usual and len(chosen) != 1:
        holds = f"it is a {type(contents).__name__}"
        if isinstance(contents, Mapping):
            holds = f"its keys are {first_names(contents)}" if contents else "it is empty"
        raise InputError(f"{file} holds no state_dict, {holds}: give a file with a model's weights")
    state = states.pop(chosen[0])
    if others := [key for key, other in states.items() if any(_SCALE.fullmatch(str(name)) for name in other)]:
        say_once(f"{file}: the weights {chosen[0]} are taken, not {', '.join(others)}")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise InputError(f"{file} holds no state_dict: {str(name)[:60]!r} is not a named tensor")
        if value.layout != torch.strided or value.is_complex() or value.is_meta:
            kinds = "a sparse, complex or empty (meta) tensor"
            raise InputError(f"{file} holds {name} as {kinds}: give dense, real weights")
    return state


def _states_in(contents: object, path: str = "") -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    """Yield the innermost mappings with tensors in `contents`, by their keys joined by dots."""
    if not isinstance(contents, Mapping):
        return
    inner: list[tuple[str, Mapping[str, Tensor]]] = []
    for key, value in contents.items():
        inner += _states_in(value, f"{path}.{key}" if path else str(key))
    yield from inner
    if not inner and any(isinstance(value, Tensor) for value in contents.values()):
        yield path, contents


def _without_wrappers(tensors: Mapping[str, Tensor], file: Path) -> dict[str, Tensor]:
    """Take the names of wrappers out of the names of parameters: those of torch (compiled, parallel, averaged and
    sharded models), and everything before `logit_scale`. What has another beginning is no part of the model."""
    # `n_averaged` is of torch's `AveragedModel`
    names = {name: _INNER.sub("", name) for name in tensors if name != "n_averaged"}
    scales = [match[1] for name in names.values() if (match := _SCALE.fullmatch(name))]
    models = [name for name in scales if _AVERAGED.search(name)] or scales
    outer = models[0] if models else ""
    if len(models) > 1:
        which = ", ".join(map(repr, models))
        raise InputError(f"{file} holds several models, with names after {which}: save one of them alone")
    others = sorted(name for name in names.values() if not name.startswith(outer))
    if others:
        say_once(f"{file}: the weights with names after {outer!r} are taken, not {first_names(others)}")
    chosen = [
        (name.removeprefix(outer), original) for original, name in names.items() if name.startswith(outer)
    ]
    state = {_OUTER.sub("", name): tensors[original] for name, original in chosen}
    if len(state) < len(chosen):
        raise InputError(f"{file} holds weights twice ({first_names(names)}): save one of its models alone")
    return state


def first_names(names: Iterable[object]) -> str:
    """List the first of some names, for messages."""
    listed = [str(name)[:60] for name in names]
    return ", ".join(listed[:_NAMED]) + (", …" if len(listed) > _NAMED else "")

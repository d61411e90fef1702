"""Read `.pt` files without running code from them.

The published checkpoints hold, beside their tensors, an `argparse.Namespace`, paths and NumPy scalars. These are
read through torch's restricted unpickler with an allow-list of exactly those types; anything else is refused.
"""

from __future__ import annotations

import argparse
import codecs
import pathlib
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diffclip.errors import InputError


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


def read_pickle(path: Path) -> Any:
    """Read the contents of a file written by `torch.save`, tensors on the CPU."""
    with torch.serialization.safe_globals(_allowed_globals()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about objects that it then refuses
        is_archive = zipfile.is_zipfile(path)
        if is_archive:
            with zipfile.ZipFile(path) as archive:
                holds_code = any("/code/" in name for name in archive.namelist())
            if holds_code:
                reason = "is a TorchScript archive, which holds code, as OpenAI's files are"
                raise InputError(str(path), reason, "give open_clip:ViT-B-32/openai, or a file of tensors")
        try:
            # files of torch < 1.6 are no archives and cannot be mapped
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
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

"""onnxruntime on the CPU: open a file, run it, and measure how far its features are from torch's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffclip.errors import DiffCLIPError

_ERRORS_ONLY = 3


def open_session(file: Path) -> Any:
    """A session on the CPU with as many threads as torch has.

    Its threads rest between calls, so that they do not slow what is measured in turns with it.

    Raises:
        DiffCLIPError: onnxruntime refuses the file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = _ERRORS_ONLY
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its many kinds have no parent of their own
        raise DiffCLIPError(f"onnxruntime cannot open {file.name}: {_reason(error)}") from error


def run(session: Any, inputs: Tensor) -> Tensor:
    """The only output of a session for its only input.

    Raises:
        DiffCLIPError: onnxruntime refuses the input, or fails.
    """
    try:
        (found,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
    except Exception as error:
        raise DiffCLIPError(f"onnxruntime fails on inputs {list(inputs.shape)}: {_reason(error)}") from error
    return torch.from_numpy(found)


def worst_error(session: Any, pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Measure the largest distance between a feature vector of the session and torch's.

    Args:
        session: of one tower.
        pairs: batches of inputs, and torch's features of them.

    Returns:
        The distance; infinite where shapes differ or the session's features are not finite.

    Raises:
        DiffCLIPError: onnxruntime refuses an input, or fails.
    """
    worst = 0.0
    for inputs, wanted in pairs:
        found = run(session, inputs)
        if found.shape != wanted.shape or not found.isfinite().all():
            return float("inf")
        worst = max(worst, (found - wanted).norm(dim=-1).max().item())
    return worst


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__

"""onnxruntime beside torch: how far apart their features are, and how long each takes on this CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffclip.benchmarking.timing import make_sampler, reason, summary, take_turns
from diffclip.errors import DiffCLIPError

_ROUNDS = 15
_FEWEST_RUNS = 5  # of each: two that warm up, and the three rounds that take_turns never goes below
_ERRORS_ONLY = 3
PLACES = ("onnxruntime", "torch")

Encode = Callable[[Tensor], Tensor]


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
        raise DiffCLIPError(f"onnxruntime cannot open {file.name}: {reason(error)}") from error


def run(session: Any, inputs: Tensor) -> Tensor:
    """The only output of a session for its only input.

    Raises:
        DiffCLIPError: onnxruntime refuses the input, or fails.
    """
    try:
        (found,) = session.run(None, {session.get_inputs()[0].name: inputs.numpy()})
    except Exception as error:
        raise DiffCLIPError(f"onnxruntime fails on inputs {list(inputs.shape)}: {reason(error)}") from error
    return torch.from_numpy(found)


def worst_error(session: Any, pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The largest distance between a feature vector of the session and the one that is wanted, over all `pairs` of a
    batch of inputs and wanted features; infinite where shapes differ or the session's are not finite.

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


def latencies(session: Any, encode: Encode, inputs: Tensor, seconds: float) -> dict[int, dict[str, Any]]:
    """How long one picture or text takes, at batch 1 and at the batch of `inputs`, in `seconds` or a little more.

    Returns:
        By batch: "onnxruntime" and "torch", each with milliseconds of one as `benchmarking.timing.summary` has them,
        samples taken in turns, and "ratio", that of the medians; or "why" it was not measured.
    """
    found: dict[int, dict[str, Any]] = {}
    started = time.perf_counter()
    for batch in (1, len(inputs)):
        left = started + seconds - time.perf_counter()
        first = found.get(1, {})
        each = sum(first[name]["median_ms"] / 1000 for name in PLACES) if "ratio" in first else 0.0
        if _FEWEST_RUNS * batch * each > left:
            found[batch] = {"why": f"it takes more than {seconds:g} seconds"}
            continue
        found[batch] = _latency(session, encode, inputs[:batch], left / 2 if batch == 1 else left)
    return found


def _latency(session: Any, encode: Encode, inputs: Tensor, seconds: float) -> dict[str, Any]:
    calls: tuple[Callable[[], object], ...] = (lambda: run(session, inputs), lambda: encode(inputs))
    with torch.inference_mode():
        samplers = {
            name: make_sampler([call], inputs.device) for name, call in zip(PLACES, calls, strict=True)
        }
        samples, failures = take_turns(samplers, _ROUNDS, seconds)
    if failures:
        return {"why": "; ".join(f"{name}: {why}" for name, why in failures.items())}
    rows = {name: summary([sample / len(inputs) for sample in taken]) for name, taken in samples.items()}
    ours, torchs = (rows[name]["median_ms"] for name in PLACES)
    return {**rows, "ratio": ours / torchs}

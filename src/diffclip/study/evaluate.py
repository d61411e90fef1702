"""A suite of one trained run, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from diffclip.errors import DiffCLIPError, InputError
from diffclip.evaluation.ledger import Ledger
from diffclip.evaluation.runner import Runner, Sets
from diffclip.evaluation.store import Store
from diffclip.evaluation.suite import suite
from diffclip.model_source import load_for_use

DRAWS = range(3)
"""Of the tasks that draw at random."""
_BATCH = 256


def evaluate_run(
    run: Path,
    name: str,
    sets: Sets,
    device: torch.device,
    say: Callable[[str], None],
    attention_backend: str | None = None,
) -> float:
    """The suite called `name` of a run's best checkpoint into its `results.jsonl`; the seconds that it took. What is
    done of it stays in `results.parts`, to go on from.

    Raises:
        InputError, DiffCLIPError: a task failed, by its input or by our fault; `results.jsonl` stays as it was.
    """
    loaded = load_for_use(str(run))
    loaded.model.to(device)
    if attention_backend is not None:
        loaded.model.set_attention_backend(attention_backend)
    ledger = Ledger(run / "results.jsonl")
    runner = Runner(sets, DRAWS, Store(run / "results.parts"), batch_size=_BATCH)
    seconds = 0.0
    for measured in runner.run(loaded, suite(name)):
        if measured.result is None:
            kind = DiffCLIPError if measured.ours else InputError
            raise kind(f"{measured.entry} failed: {measured.failure}")
        ledger.add(measured.result, loaded.label, loaded.weights, loaded.seed)
        seconds += measured.seconds
        score = measured.result.scores[0]
        say(f"{measured.entry}: {score.metric} {score.value:.1%}, {measured.seconds:.1f} s")
    ledger.write()
    return seconds

"""What a training step of each arm takes, measured alone: all arms take turns in one process that has the machine."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError

from diffclip.config import explain
from diffclip.errors import DiffCLIPError, InputError, require_group
from diffclip.files import check_writable, disk_errors, write_text
from diffclip.study.plan import Planned
from diffclip.study.recipe import BASELINE, Study
from diffclip.study.step import Step, make_batch
from diffclip.training.recipe import Recipe
from diffclip.training.run_folder import cpu_name

if TYPE_CHECKING:
    from diffclip.study.one import Place

TIMING_FILE = "timing.json"

_LEAST_ROUNDS, _MOST_ROUNDS = 3, 15
_KINDS_OF_BLOCKS = 256  # that torch keeps compiled, each layer of each arm being one
_FINITE: ConfigDict = {"allow_inf_nan": False}


@dataclass(frozen=True)
class ArmTime:
    """A step of an arm.

    Attributes:
        milliseconds: the median over rounds.
        ratio: to CLIP's step of the same round, the median over rounds.
        low, high: its 95 % interval, see `time_arms`.
        peak_memory: bytes on a GPU, of this arm alone; None on a CPU.
    """

    milliseconds: float
    ratio: float
    low: float
    high: float
    peak_memory: int | None

    __pydantic_config__: ClassVar[ConfigDict] = _FINITE


@dataclass(frozen=True)
class Timing:
    """What was measured, where, and in how many rounds; `batch_size` is CLIP's."""

    device: str
    threads: int
    torch: str
    rounds: int
    batch_size: int
    arms: dict[str, ArmTime]

    __pydantic_config__: ClassVar[ConfigDict] = _FINITE


def read_timing(folder: Path) -> Timing | None:
    """What `time_arms` has left in a study's folder; None where it has not.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    file = folder / TIMING_FILE
    with disk_errors(file):
        if not file.is_file():
            return None
        content = file.read_bytes()
    try:
        return TypeAdapter(Timing).validate_json(content)
    except ValidationError as error:
        raise InputError(f"{file} cannot be read: {explain(error)}; remove it to measure anew") from None


def time_arms(study: Study, place: Place, threads: int, seconds: float) -> Timing:
    """Measure a training step of every arm and write `timing.json` into the study's folder.

    A step is the training loop's in one process, from a made-up batch of uint8 pictures and tokens on the device:
    normalise, forward, loss, backward, gradient clipping, AdamW. In each round every arm takes a turn of three steps
    after one that warms up; the order is another in each round. The ratio to CLIP is taken within a round, so that
    the machine's moods meet both. Arms that compute the same are measured all the same: their ratio shows the noise.

    The interval is the distribution-free one of a median: from the k-th least to the k-th greatest ratio, with the
    greatest k that makes at least 95 %. Fewer than six rounds cannot make that (three make 75 %, five 94 %): there it
    is the least and the greatest.

    Args:
        threads: that torch computes on meanwhile, on a CPU.
        seconds: from the call on; after three rounds none is begun that would not end in time; fifteen are enough.

    Raises:
        InputError: a recipe or `place` cannot be used.
        DiffCLIPError: the arms do not fit into the GPU's memory.
    """
    require_group("train", "lightning", "open_clip")
    check_writable(place.output / TIMING_FILE)
    recipes = {
        arm: place.recipe(study, Planned("models", arm, arm, 0, own.change, None))
        for arm, own in study.arms.items()
    }
    device = torch.device(place.device)
    with _prepared(threads, any(recipe.compile for recipe in recipes.values())):
        try:
            rounds = _take_turns(recipes, device, time.monotonic() + seconds)
        except torch.OutOfMemoryError:
            raise DiffCLIPError(
                "the GPU's memory does not hold all arms to time their steps: stop what else uses it, or leave arms out"
            ) from None
    timing = Timing(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name() or "CPU",
        threads=threads,
        torch=str(torch.__version__),
        rounds=len(rounds),
        batch_size=recipes[BASELINE].batch_size,
        arms={arm: _arm_time(arm, rounds) for arm in recipes},
    )
    write_text(place.output / TIMING_FILE, json.dumps(asdict(timing), indent=1) + "\n")
    return timing


_Round = dict[str, tuple[float, int | None]]
"""Milliseconds of a step and peak memory, by arm."""


def _take_turns(recipes: dict[str, Recipe], device: torch.device, end: float) -> list[_Round]:
    made = cache(make_batch)
    steps = {}
    for arm, recipe in recipes.items():
        config = recipe.config()
        sizes = config.vision.image_size, config.text.context_length, config.text.vocab_size
        steps[arm] = Step(recipe, device, made(recipe.batch_size, *sizes, device))
        steps[arm]()  # what is compiled is compiled now
    rounds: list[_Round] = []
    took = 0.0
    while len(rounds) < _LEAST_ROUNDS or (len(rounds) < _MOST_ROUNDS and time.monotonic() + took < end):
        started = time.monotonic()
        turned, back = len(rounds) // 2 % len(steps), len(rounds) % 2
        order = [*steps][turned:] + [*steps][:turned]
        rounds.append({arm: steps[arm].turn() for arm in (reversed(order) if back else order)})
        took = time.monotonic() - started
    return rounds


def _arm_time(arm: str, rounds: list[_Round]) -> ArmTime:
    ratios = sorted(each[arm][0] / each[BASELINE][0] for each in rounds)
    outside = _left_out(len(ratios))
    peaks = [peak for _, peak in (each[arm] for each in rounds) if peak is not None]
    return ArmTime(
        milliseconds=round(statistics.median(each[arm][0] for each in rounds), 3),
        ratio=round(statistics.median(ratios), 4),
        low=round(ratios[outside], 4),
        high=round(ratios[-1 - outside], 4),
        peak_memory=max(peaks, default=None),
    )


def _left_out(rounds: int) -> int:
    """How many values on either side the interval of the median of so many leaves out: the most that at least 95 % of
    all samples allow, by the binomial distribution."""
    outside, tail = 0, 1 / 2**rounds  # the probability that the median lies below all values
    while 2 * (tail := tail + math.comb(rounds, outside + 1) / 2**rounds) <= 0.05:
        outside += 1
    return outside


@contextmanager
def _prepared(threads: int, compiles: bool) -> Iterator[None]:
    """Torch computes on so many threads within, and keeps what is compiled of all arms."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch._dynamo.config.patch(recompile_limit=_KINDS_OF_BLOCKS) if compiles else nullcontext():
            yield
    finally:
        torch.set_num_threads(before)

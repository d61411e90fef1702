"""Experiment C: one attention layer has to find one of N tokens, in noise that its maps share or do not share.

Each sequence has a class token, N − 1 tokens of random classes and one needle, marked by a direction of its own. The
class token's output names the needle's class. Noise is added to the input of the keys. Both maps of a pair see the same
noise ("shared"), as with an ordinary noisy input, or each map sees its own ("independent"), as a contrast. All arms of
a seed have the same initial values, data and noise. Each arm has a learning rate of its own, chosen with other seeds.

python -m benchmarks.needle [--output benchmarks/results/needle.jsonl] [--seeds 50] [--dry-run]

The output has a line per cell and arm, with lists over seeds; needle_timing.json beside it has the time of a training
step. The same command continues with the remaining cells.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.about import parser_of, write_json
from diffclip.attention.head_norm import HEAD_NORM_EPS
from diffclip.benchmarking.timing import Sampler, make_sampler, take_turns
from diffclip.evaluation.statistics import detectable_difference
from diffclip.files import write_text
from diffclip.study.timing import time_of
from diffclip.training.run_folder import read_lines

WIDTH, HEADS, CLASSES = 32, 4, 8
ARMS = ("CLIP", "CLIP-half-heads", "DiffCLIP", "CLIP-gated")
KINDS = ("shared", "independent")
LENGTHS, STRENGTHS = (16, 64, 256), (0.5, 1.0, 1.5, 2.0)
MIDDLE = 64, 1.0
"""Tokens and strength of the cell in which learning rates are chosen, for each kind of noise."""
PRIMARY = "shared", *MIDDLE
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
SWEEP_SEEDS = range(1000, 1010)
MARK = 4.0
"""Length of the needle's mark; the noise has the strength σ in every direction."""
LAMBDA_INIT = 0.8
STEPS, BATCH, TEST = 600, 16, 256

Weights = dict[str, Tensor]


class Cell(NamedTuple):
    """A kind of noise, the number of tokens and the strength of the noise."""

    kind: str
    tokens: int
    strength: float


class Found(NamedTuple):
    """The class token's output [S, B, C], and its maps A1 and A2 [S, B, H, N + 1] with λ [S]; A2 and λ may be None."""

    out: Tensor
    first: Tensor
    second: Tensor | None
    lam: Tensor | None

    @property
    def combined(self) -> Tensor:
        if self.second is None or self.lam is None:
            return self.first
        return self.first - self.lam[:, None, None, None] * self.second


def heads_of(arm: str) -> int:
    return HEADS // 2 if arm == "CLIP-half-heads" else HEADS


def make_weights(arm: str, seeds: list[int]) -> Weights:
    """Draw the weights of one model per seed, stacked. Weights that all arms have come first, so they are equal."""

    def draw(seed: int) -> Weights:
        generator = torch.Generator().manual_seed(10**6 + seed)  # not the seeds of the data

        def normal(*shape: int, std: float) -> Tensor:
            return std * torch.randn(*shape, generator=generator)

        scale = WIDTH**-0.5
        drawn = {
            "token": normal(WIDTH, std=1.0),
            "qkv": normal(3 * WIDTH, WIDTH, std=scale),
            "out": normal(WIDTH, WIDTH, std=scale),
            "classes": normal(CLASSES, WIDTH, std=scale),
        }
        if arm == "DiffCLIP":
            drawn |= {"lambdas": normal(4, WIDTH // HEADS, std=0.1), "norm": torch.ones(2 * WIDTH // HEADS)}
        if arm == "CLIP-gated":
            drawn["gate"] = normal(WIDTH, WIDTH, std=scale)
        return drawn

    drawn = [draw(seed) for seed in seeds]
    return {name: torch.stack([weights[name] for weights in drawn]).requires_grad_() for name in drawn[0]}


def attend(arm: str, weights: Weights, x: Tensor, noise: Tensor) -> Found:
    """Compute the class token's output for tokens x [S, B, N, C]; the keys' input gets `noise` [S, B, HEADS, N, C].

    Without noise the output is row 0 of the output of `diffclip.attention`'s layers for [class token, x].
    """
    batch, heads = x.shape[1], heads_of(arm)
    size = WIDTH // heads
    noise = noise[:, :, :: HEADS // heads]
    token = weights["token"][:, None, None].expand(-1, batch, 1, -1)
    clean = torch.cat([token, x], 2)
    of_q, of_k, of_v = weights["qkv"].chunk(3, 1)
    q = torch.einsum("shec,sc->she", of_q.unflatten(1, (heads, size)), weights["token"]) * size**-0.5
    # q·(W·(x + η)) = (q·W)·x + (q·W)·η, so the keys of each head's own noisy tokens are never computed
    reader = torch.einsum("she,shec->shc", q, of_k.unflatten(1, (heads, size)))
    scores = torch.einsum("shc,sbnc->sbhn", reader, clean)
    noisy = torch.einsum("shc,sbhnc->sbhn", reader, noise)
    maps = (scores + F.pad(noisy, (1, 0))).softmax(-1)
    first, second, lam = maps, None, None
    values = torch.einsum("sec,sbnc->sbne", of_v, clean)
    if arm == "DiffCLIP":
        first, second = maps[:, :, 0::2], maps[:, :, 1::2]
        q1, k1, q2, k2 = weights["lambdas"].unbind(1)
        lam = (q1 * k1).sum(-1).exp() - (q2 * k2).sum(-1).exp() + LAMBDA_INIT
    result = Found(x, first, second, lam)
    groups = first.shape[2]
    out = torch.einsum("sbhn,sbnhe->sbhe", result.combined, values.unflatten(-1, (groups, WIDTH // groups)))
    if arm == "DiffCLIP":
        out = F.rms_norm(out, out.shape[-1:], eps=HEAD_NORM_EPS) * weights["norm"][:, None, None]
        out = out * (1 - LAMBDA_INIT)
    out = out.flatten(2)
    if arm == "CLIP-gated":
        out = out * torch.sigmoid(torch.einsum("sec,sc->se", weights["gate"], weights["token"]))[:, None]
    return result._replace(out=torch.einsum("sec,sbc->sbe", weights["out"], out))


class Data:
    """Sequences for one model per seed. Each model has its own class vectors and mark."""

    def __init__(self, seeds: list[int]) -> None:
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        drawn = [torch.randn(CLASSES + 1, WIDTH, generator=generator) for generator in self.generators]
        vectors = F.normalize(torch.stack(drawn), dim=-1)
        self.classes, self.mark = 2.0 * vectors[:, :CLASSES], MARK * vectors[:, CLASSES]

    def draw(self, cell: Cell, count: int) -> tuple[Tensor, ...]:
        """Draw `count` sequences per model: tokens, noise, and the needle's place and class [S, B]."""
        models = zip(self.generators, self.classes, self.mark, strict=True)
        each = [self._draw(cell, count, *model) for model in models]
        return tuple(torch.stack(parts) for parts in zip(*each, strict=True))

    @staticmethod
    def _draw(
        cell: Cell, count: int, generator: torch.Generator, classes: Tensor, mark: Tensor
    ) -> tuple[Tensor, ...]:
        labels = torch.randint(CLASSES, (count, cell.tokens), generator=generator)
        place = torch.randint(cell.tokens, (count,), generator=generator)
        rows = torch.arange(count)
        x = classes[labels]
        x[rows, place] += mark
        views = HEADS // 2 if cell.kind == "shared" else HEADS
        noise = torch.randn(count, views, cell.tokens, WIDTH, generator=generator) * cell.strength
        return x, noise.repeat_interleave(HEADS // views, 1), place, labels[rows, place]


def train(
    cell: Cell, seeds: list[int], rates: dict[str, float], steps: int
) -> dict[str, dict[str, list[float]]]:
    """Train every arm of every seed on the same sequences; return arm → measure → a value per seed."""
    data = Data(seeds)
    arms = {arm: make_weights(arm, seeds) for arm in rates}
    optimizers = {arm: torch.optim.Adam(weights.values(), lr=rates[arm]) for arm, weights in arms.items()}
    for step in range(steps):
        x, noise, _, label = data.draw(cell, BATCH)
        for arm, weights in arms.items():
            optimizers[arm].param_groups[0]["lr"] = rates[arm] * (1 - step / steps)
            _step(arm, weights, optimizers[arm], x, noise, label)
    x, noise, place, label = data.draw(cell, TEST)
    with torch.inference_mode():
        return {arm: measure(arm, weights, x, noise, place, label) for arm, weights in arms.items()}


def _step(
    arm: str, weights: Weights, optimizer: torch.optim.Optimizer, x: Tensor, noise: Tensor, label: Tensor
) -> None:
    logits = torch.einsum("skc,sbc->sbk", weights["classes"], attend(arm, weights, x, noise).out)
    # a sum over models, so that each has the gradient of its own mean loss
    loss = F.cross_entropy(logits.flatten(0, 1), label.flatten(), reduction="sum") / BATCH
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def time_steps(seeds: list[int]) -> dict[str, dict[str, float]]:
    """Measure a training step of each arm in the primary cell, in turns: milliseconds, and the ratio to CLIP's."""
    x, noise, _, label = Data(seeds).draw(Cell(*PRIMARY), BATCH)

    def sampler(arm: str) -> Sampler:
        weights = make_weights(arm, seeds)
        optimizer = torch.optim.Adam(weights.values(), lr=0.0)
        return make_sampler(10 * [partial(_step, arm, weights, optimizer, x, noise, label)], x.device)

    times, _ = take_turns({arm: sampler(arm) for arm in ARMS}, rounds=15)
    return {arm: time_of(times[arm], times[ARMS[0]]) for arm in ARMS}


def measure(
    arm: str, weights: Weights, x: Tensor, noise: Tensor, place: Tensor, label: Tensor
) -> dict[str, list[float]]:
    """Return values per seed: accuracy, signal to noise of the first and the combined map, λ, correlation of the maps.

    Signal to noise is the needle's weight over the standard deviation of the other tokens' weights, in the best head.
    """
    result = attend(arm, weights, x, noise)
    logits = torch.einsum("skc,sbc->sbk", weights["classes"], result.out)
    measured = {"acc1": (logits.argmax(-1) == label).double().mean(-1)}
    measured["snr_first"] = _signal_to_noise(result.first, place)
    if result.second is not None and result.lam is not None:
        measured["snr_combined"] = _signal_to_noise(result.combined, place)
        measured["lambda"] = result.lam.double()
        pair = torch.stack([result.first, result.second])[..., 1:].double()
        pair = F.normalize(pair - pair.mean(-1, keepdim=True), dim=-1)
        measured["map_correlation"] = pair.prod(0).sum(-1).mean((1, 2))
    return {name: values.tolist() for name, values in measured.items()}


def _signal_to_noise(maps: Tensor, place: Tensor) -> Tensor:
    row = maps[..., 1:].double()
    index = place[:, :, None, None].expand(*row.shape[:3], 1)
    signal = row.gather(-1, index).squeeze(-1)
    other_weights = row.scatter(-1, index, math.nan)
    spread = (other_weights - other_weights.nanmean(-1, keepdim=True)).square().nanmean(-1).sqrt()
    return (signal.mean(1) / spread.mean(1).clamp_min(1e-12)).amax(-1)


def cells() -> Iterator[Cell]:
    """Yield the cells: every length at the middle strength, and every strength at the middle length."""
    for cell in itertools.starmap(Cell, itertools.product(KINDS, LENGTHS, STRENGTHS)):
        if cell.tokens == MIDDLE[0] or cell.strength == MIDDLE[1]:
            yield cell


def choose_rates(kind: str) -> dict[str, float]:
    """Choose for each arm the learning rate with the best mean accuracy over the sweep's seeds, in the middle cell."""
    cell = Cell(kind, *MIDDLE)
    tried = {rate: train(cell, list(SWEEP_SEEDS), dict.fromkeys(ARMS, rate), STEPS) for rate in RATES}
    return {arm: max(RATES, key=lambda rate: fmean(tried[rate][arm]["acc1"])) for arm in ARMS}


def describe_plan(remaining: Sequence[Cell], seeds: int, lines: Sequence[dict[str, Any]]) -> str:
    """Say how long the remaining cells take here, and which difference the primary cell finds."""

    def seconds(cell: Cell, seeds: list[int]) -> float:
        times = []
        for steps in (1, 3):
            started = time.perf_counter()
            train(cell, seeds, dict.fromkeys(ARMS, RATES[0]), steps)
            times.append(time.perf_counter() - started)
        return times[0] + (STEPS - 1) * (times[1] - times[0]) / 2

    sweeps = [Cell(kind, *MIDDLE) for kind in dict.fromkeys(cell.kind for cell in remaining)]
    total = sum(seconds(cell, list(range(seeds))) for cell in remaining)
    total += len(RATES) * sum(seconds(cell, list(SWEEP_SEEDS)) for cell in sweeps)
    plan = f"{len(remaining)} cells are left: about {total / 60:.0f} min"
    accuracies = {
        line["model"]: line["acc1"]
        for line in lines
        if (line["kind"], line["tokens"], line["strength"]) == PRIMARY
    }
    if not accuracies:
        return f"{plan}; the variance is unknown before the primary cell has run"
    gains = torch.tensor([accuracies["DiffCLIP"], accuracies["CLIP"]]).double().diff(dim=0)
    found = detectable_difference(float(gains.std()) / math.sqrt(seeds), seeds - 1)
    return f"{plan}; {seeds} seeds find {100 * found:.1f} points in the primary cell with 80 % power"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/needle.jsonl"))
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1, help="of torch; other numbers may round otherwise")
    parser.add_argument("--dry-run", action="store_true", help="say what is left, and train nothing")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lines = read_lines(options.output)
    if any(len(line["acc1"]) != options.seeds for line in lines):
        seeds = len(lines[0]["acc1"])
        raise SystemExit(f"{options.output} has {seeds} seeds: give --seeds {seeds}, or another --output")
    finished = {Cell(line["kind"], line["tokens"], line["strength"]) for line in lines}
    remaining_cells = [cell for cell in cells() if cell not in finished]
    if options.dry_run:
        print(*remaining_cells, describe_plan(remaining_cells, options.seeds, lines), sep="\n")
        return
    for kind in KINDS:
        remaining = [cell for cell in remaining_cells if cell.kind == kind]
        rates = choose_rates(kind) if remaining else {}
        for cell in remaining:
            started = time.monotonic()
            results = train(cell, list(range(options.seeds)), rates, STEPS)
            for arm, measures in results.items():
                rounded = {
                    name: [float(f"{value:.5g}") for value in values] for name, values in measures.items()
                }
                lines.append({**cell._asdict(), "model": arm, "lr": rates[arm], "steps": STEPS, **rounded})
            write_text(options.output, "".join(json.dumps(line) + "\n" for line in lines))
            accuracies = {arm: f"{fmean(measures['acc1']):.1%}" for arm, measures in results.items()}
            print(cell, accuracies, rates, f"{time.monotonic() - started:.0f} s", flush=True)
    timing = options.output.with_name(f"{options.output.stem}_timing.json")
    if not timing.is_file():
        write_json(timing, time_steps(list(range(options.seeds))))


if __name__ == "__main__":
    main()

"""Experiment C′: one attention layer finds one of N tokens in noise, trained until the order of the arms stays.

Each sequence has a class token, N tokens of random classes and, at one of them, a mark: the needle. The class token's
output names the needle's class. All heads see the same noise. Cells of the kind "keys" add noise to the input of the
keys. The cell of the kind "scores" is the positive control: the noise is a bias per token on the scores of all maps,
which the mark does not share, and the queries are bounded, so that softmax cannot make the noise small and a second map
can cancel it.

All arms, learning rates and lengths of a seed have the same initial values, data and noise; they are trained side by
side. Seeds 1000 to 1009 choose each arm's rate; seeds 0 to 49 are reported.

python -m experiments.needle_converged.needle [--cell N] [--check SEED…]

`runs.csv` beside this file holds the finished cells; the command runs the others, and writes results.csv when all are
there. `make experiments` writes the page.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from diffclip.evaluation.records import Record, write_table
from diffclip.evaluation.statistics import compare_runs
from diffclip.report.labels import percent
from diffclip.report.tables import Table
from experiments.seed_rows import read_rows, write_rows

RUNS = Path(__file__).with_name("runs.csv")
WIDTH, HEADS, CLASSES, TOKENS = 32, 4, 8, 64
ARMS = (
    "CLIP",
    "CLIP-half-heads",
    "CLIP-half-heads-norm",
    "DiffCLIP-lambda0",
    "DiffCLIP",
    "DiffCLIP-positive",
)
LENGTHS = (600, 1200, 2400, 4800)
RATES = (1e-3, 3e-3, 1e-2)
SEEDS, SWEEP_SEEDS = tuple(range(50)), tuple(range(1000, 1010))
BATCH, TEST = 16, 1024
MARK = 4.0
"""Length of the needle's mark; noise at the keys has the strength σ in every direction."""
LAMBDA_INIT, NORM_EPS = 0.8, 1e-5
BOUND = 0.5
"""Largest norm of a query in the positive control, seen from the tokens: the mark adds at most BOUND · MARK."""

Weights = dict[str, Tensor]
Values = npt.NDArray[np.float64]
Variant = tuple[float, int]
"""A learning rate and a number of steps."""


class Cell(NamedTuple):
    """The kind of noise ("keys" or "scores") and its standard deviation."""

    kind: str
    sigma: float


CELLS = (Cell("keys", 1.5), Cell("keys", 1.0), Cell("keys", 2.0), Cell("scores", 2.0))
"""The cell of the primary endpoint comes first."""
COLORS = ("#8c959f", "#0969da", "#1a7f37", "#cf5300", "#bf3989")
"""Of the arms after CLIP."""


def initial_weights(arm: str, seeds: tuple[int, ...]) -> Weights:
    """Return the initial weights of a model per seed, stacked. Weights that all arms have are drawn first: equal."""
    models = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(10**6 + seed)  # not the seeds of the data

        def normal(*shape: int, std: float, generator: torch.Generator = generator) -> Tensor:
            return std * torch.randn(*shape, generator=generator)

        scale = WIDTH**-0.5
        model = {
            "token": normal(WIDTH, std=1.0),
            "q": normal(WIDTH, WIDTH, std=scale),
            "k": normal(WIDTH, WIDTH, std=scale),
            "v": normal(WIDTH, WIDTH, std=scale),
            "out": normal(WIDTH, WIDTH, std=scale),
            "classes": normal(CLASSES, WIDTH, std=scale),
        }
        if arm in ("DiffCLIP", "DiffCLIP-positive"):
            model["lambdas"] = normal(4, WIDTH // HEADS, std=0.1)
        if arm not in ("CLIP", "CLIP-half-heads"):
            model["norm"] = torch.ones(2 * WIDTH // HEADS)
        models.append(model)
    return {name: torch.stack([model[name] for model in models]) for name in models[0]}


def lambda_of(arm: str, weights: Weights) -> Tensor:
    """Return λ [S, V]: the paper's form, or one that starts alike and stays positive."""
    q1, k1, q2, k2 = weights["lambdas"].unbind(-2)
    first, second = (q1 * k1).sum(-1), (q2 * k2).sum(-1)
    if arm == "DiffCLIP-positive":
        return LAMBDA_INIT * (first - second).exp()
    return first.exp() - second.exp() + LAMBDA_INIT


def compute_maps(arm: str, weights: Weights, cell: Cell, x: Tensor, noise: Tensor) -> Tensor:
    """Return the class token's maps [S, B, V, maps, 1 + N]; noise is [S, B, N, C] at the keys, [S, B, N] at scores."""
    token = weights["token"]  # [S, V, C]
    heads = HEADS // 2 if arm.startswith("CLIP-half-heads") else HEADS
    size = WIDTH // heads
    wq, wk = (weights[name].unflatten(-2, (heads, size)) for name in ("q", "k"))
    if arm == "DiffCLIP-lambda0":  # the first map of each pair
        wq, wk = wq[:, :, 0::2], wk[:, :, 0::2]
    # q·(W·x) = (q·W)·x, so no keys are computed
    reader = torch.einsum("svhe,svhec->svhc", torch.einsum("svhec,svc->svhe", wq, token) * size**-0.5, wk)
    keys = x
    if cell.kind == "keys":
        keys = x + noise
    else:
        reader = reader * (BOUND / reader.norm(dim=-1, keepdim=True)).clamp(max=1.0)
    scores = reader.flatten(1, 2)[:, None] @ keys.mT  # [S, B, V·maps, N]
    if cell.kind == "scores":
        scores = scores + noise[:, :, None]
    own = (
        torch.einsum("svhc,svc->svh", reader, token).flatten(1)[:, None, :, None].expand(*scores.shape[:3], 1)
    )
    return torch.cat([own, scores], -1).softmax(-1).unflatten(2, reader.shape[1:3])


def forward(arm: str, weights: Weights, cell: Cell, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits [S, B, V, classes] and the maps [S, B, V, maps, 1 + N] for tokens x [S, B, N, C]."""
    maps = compute_maps(arm, weights, cell, x, noise)
    combined = maps
    if arm in ("DiffCLIP", "DiffCLIP-positive"):
        combined = maps[..., 0::2, :] - lambda_of(arm, weights)[:, None, :, None, None] * maps[..., 1::2, :]
    groups = combined.shape[3]
    # A·(W·x) = W·(A·x): tokens are averaged before the values are computed
    pooled = (combined[..., 1:].flatten(2, 3) @ x).unflatten(2, combined.shape[2:4])
    pooled = pooled + combined[..., :1] * weights["token"][:, None, :, None]
    out = torch.einsum("svgec,sbvgc->sbvge", weights["v"].unflatten(-2, (groups, WIDTH // groups)), pooled)
    if "norm" in weights:
        out = F.rms_norm(out, out.shape[-1:], eps=NORM_EPS) * weights["norm"][:, None, :, None]
        out = out * (1 - LAMBDA_INIT)
    out = torch.einsum("svec,sbvc->sbve", weights["out"], out.flatten(3))
    return torch.einsum("svkc,sbvc->sbvk", weights["classes"], out), maps


class Data:
    """Sequences for one model per seed; each seed has its own class vectors and mark."""

    def __init__(self, cell: Cell, seeds: tuple[int, ...], test: bool = False) -> None:
        self.cell = cell
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        drawn = [torch.randn(CLASSES + 1, WIDTH, generator=generator) for generator in self.generators]
        vectors = F.normalize(torch.stack(drawn), dim=-1)
        self.classes, self.mark = 2.0 * vectors[:, :CLASSES], MARK * vectors[:, CLASSES]
        if test:
            self.generators = [torch.Generator().manual_seed(10**7 + seed) for seed in seeds]

    def draw(self, count: int, views: int = 1) -> tuple[Tensor, list[Tensor], Tensor]:
        """Draw `count` sequences per seed: tokens [S, B, N, C], `views` draws of the noise, the needle's class."""
        tokens, noises, answers = [], [], []
        shape = (count, TOKENS, WIDTH) if self.cell.kind == "keys" else (count, TOKENS)
        for generator, classes, mark in zip(self.generators, self.classes, self.mark, strict=True):
            labels = torch.randint(CLASSES, (count, TOKENS), generator=generator)
            position = torch.randint(TOKENS, (count,), generator=generator)
            rows = torch.arange(count)
            x = classes[labels]
            x[rows, position] += mark
            tokens.append(x)
            noises.append([torch.randn(shape, generator=generator) * self.cell.sigma for _ in range(views)])
            answers.append(labels[rows, position])
        return (
            torch.stack(tokens),
            [torch.stack(view) for view in zip(*noises, strict=True)],
            torch.stack(answers),
        )


def train(
    cell: Cell, seeds: tuple[int, ...], lengths: tuple[int, ...] = LENGTHS
) -> dict[str, dict[Variant, Weights]]:
    """Train every arm with every rate and length on the same sequences; the rate falls linearly to 0."""
    data = Data(cell, seeds)
    trained: dict[str, dict[Variant, Weights]] = {}
    optimizers: dict[str, torch.optim.Optimizer] = {}
    for arm in ARMS:
        start = initial_weights(arm, seeds)
        trained[arm] = {
            (rate, length): {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
            for length in lengths
            for rate in RATES
        }
        groups = [{"params": list(weights.values())} for weights in trained[arm].values()]
        optimizers[arm] = torch.optim.Adam(groups, fused=True)
    for step in range(max(lengths)):
        x, (noise,), answer = data.draw(BATCH)
        for arm, variants in trained.items():
            for (rate, length), group in zip(variants, optimizers[arm].param_groups, strict=True):
                group["lr"] = rate * (1 - step / length)
            active = [weights for (_, length), weights in variants.items() if step < length]
            logits, _ = forward(arm, stack(active), cell, x, noise)
            # a sum over models, so that each has the gradient of its own mean loss
            targets = answer[:, :, None].expand(logits.shape[:3])
            loss = F.cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="sum") / BATCH
            optimizers[arm].zero_grad()
            loss.backward()
            optimizers[arm].step()
    return trained


def stack(variants: list[Weights]) -> Weights:
    """Stack the weights of variants: [S, …] each to [S, V, …]."""
    return {name: torch.stack([weights[name] for weights in variants], 1) for name in variants[0]}


@torch.inference_mode()
def measure(
    cell: Cell, seeds: tuple[int, ...], trained: dict[str, dict[Variant, Weights]]
) -> dict[tuple[str, float, int], dict[str, list[float]]]:
    """Return values per seed for each arm, rate and length.

    acc1; of differential arms also λ, the correlation of A1 and A2 over the tokens (`map_correlation`), and that of
    their changes when the same sequence gets other noise (`change_correlation`), means over sequences and pairs.
    """
    data = Data(cell, seeds, test=True)
    parts = 16
    sums: dict[tuple[str, str], Tensor] = {}
    for _ in range(parts):
        x, noises, answer = data.draw(TEST // parts, views=2)
        for arm, variants in trained.items():
            weights = stack(list(variants.values()))
            logits, maps = forward(arm, weights, cell, x, noises[0])
            values = {"acc1": (logits.argmax(-1) == answer[:, :, None]).double().mean(1)}
            if "lambdas" in weights:
                change = maps - compute_maps(arm, weights, cell, x, noises[1])
                values["map_correlation"] = pair_correlation(maps)
                values["change_correlation"] = pair_correlation(change)
                values["lambda"] = lambda_of(arm, weights).double()
            for name, value in values.items():
                sums[arm, name] = sums.get((arm, name), 0) + value / parts
    return {
        (arm, rate, length): {
            name: total[:, column].tolist() for (of, name), total in sums.items() if of == arm
        }
        for arm, variants in trained.items()
        for column, (rate, length) in enumerate(variants)
    }


def pair_correlation(maps: Tensor) -> Tensor:
    """Return the correlation over tokens of the two maps of a pair, mean over sequences and pairs: [S, V]."""
    rows = maps[..., 1:].double()
    rows = F.normalize(rows - rows.mean(-1, keepdim=True), dim=-1)
    return (rows[..., 0::2, :] * rows[..., 1::2, :]).sum(-1).mean((1, 3))


def run_cell(cell: Cell, seeds: tuple[int, ...]) -> list[dict[str, Any]]:
    """Train and measure one cell; return a row per arm, rate, length and metric, with a value per seed."""
    measured = measure(cell, seeds, train(cell, seeds))
    return [
        {"kind": cell.kind, "sigma": cell.sigma, "steps": length, "model": arm, "lr": rate, "metric": name}
        | {"values": [float(f"{value:.5g}") for value in values]}
        for (arm, rate, length), metrics in measured.items()
        for name, values in metrics.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cell", type=int, help="run this cell alone (0 is the primary's)")
    parser.add_argument(
        "--check", type=int, nargs="*", help="run the cells again with these seeds, and compare"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = read_rows(RUNS)
    for number, cell in enumerate(CELLS):
        kept = [row for row in rows if (row["kind"], row["sigma"]) == cell]
        if options.cell not in (None, number) or bool(kept) != bool(options.check):
            continue
        started = time.monotonic()
        if options.check:
            print(
                cell,
                f"largest difference in accuracy {compare_again(cell, kept, options.check):.5f}",
                flush=True,
            )
            continue
        rows += run_cell(cell, SEEDS + SWEEP_SEEDS)
        write_rows(RUNS, rows)
        print(cell, f"{time.monotonic() - started:.0f} s", flush=True)
    if all(any((row["kind"], row["sigma"]) == cell for row in rows) for cell in CELLS):
        write_results(rows)


def compare_again(cell: Cell, kept: list[dict[str, Any]], seeds: list[int]) -> float:
    """Run a cell again with a few seeds; return the largest difference of an accuracy to the kept one."""
    columns = [(SEEDS + SWEEP_SEEDS).index(seed) for seed in seeds]
    return max(
        abs(old["values"][column] - value)
        for old, new in zip(kept, run_cell(cell, tuple(seeds)), strict=True)
        for column, value in zip(columns, new["values"], strict=True)
        if old["metric"] == "acc1"
    )


def accuracies(rows: list[dict[str, Any]], cell: Cell, steps: int) -> dict[str, tuple[float, Values]]:
    """Return the chosen rate of each arm, and its accuracies over the reported seeds."""
    chosen = {}
    for arm in ARMS:
        values = {
            row["lr"]: np.array(row["values"])
            for row in rows
            if ((row["kind"], row["sigma"]), row["steps"], row["model"], row["metric"])
            == (cell, steps, arm, "acc1")
        }
        rate = max(RATES, key=lambda rate: values[rate][len(SEEDS) :].mean())
        chosen[arm] = rate, values[rate][: len(SEEDS)]
    return chosen


def describe(cell: Cell) -> str:
    kind = "noise at the keys" if cell.kind == "keys" else "positive control, noise at the scores"
    return f"{kind}, σ = {cell.sigma:g}"


def write_results(rows: list[dict[str, Any]]) -> None:
    """Write what the spec compares into results.csv: the accuracies after the longest training."""
    facts: dict[str, Any] = {"task": "needle", "split": "test", "metric": "acc1", "chance": 1 / CLASSES}
    facts |= {"count": TEST, "low": None, "high": None, "steps": LENGTHS[-1], "weights": ""}
    facts["protocol"] = "one layer at the rate that seeds 1000 to 1009 chose"
    records = [
        Record(**facts, model=arm, seed=seed, dataset=describe(cell), value=value)
        for cell in CELLS
        for arm, (_, values) in accuracies(rows, cell, LENGTHS[-1]).items()
        for seed, value in zip(SEEDS, values.tolist(), strict=True)
    ]
    write_table(RUNS.parent, records)


def every_length() -> str:
    """Draw the figure, and return the section of the page about every length, which the spec does not compare."""
    rows = read_rows(RUNS)
    draw_lengths(rows)
    lines = [
        "## Every length\n\n"
        "![Difference to CLIP after each length of training](results_lengths.png)\n\n"
        "Accuracy in percent over 50 seeds at the chosen rate; difference to CLIP in points with its 95 % interval.\n"
        "λ: median, and share of runs that end below 0. Correlations of A1 and A2, and of their changes: medians."
    ]
    for cell in CELLS:
        lines += [f"### {describe(cell).capitalize()}", _table(cell, rows).to_markdown()]
    return "\n\n".join(lines) + "\n"


def draw_lengths(rows: list[dict[str, Any]]) -> None:
    """Draw the difference of each arm to CLIP after each length, a panel a cell, into `results_lengths.png`."""
    figure = Figure((8, 2.9 * -(-len(CELLS) // 2)), layout="constrained")
    panels = figure.subplots(-(-len(CELLS) // 2), 2, squeeze=False).ravel()
    for axes, cell in zip(panels, sorted(CELLS), strict=True):
        by_length = {steps: accuracies(rows, cell, steps) for steps in LENGTHS}
        for number, arm in enumerate(ARMS[1:]):
            tests = [
                compare_runs(100 * chosen[arm][1], 100 * chosen[ARMS[0]][1], paired=True)
                for chosen in by_length.values()
            ]
            errors = [
                [test.difference - test.low for test in tests],
                [test.high - test.difference for test in tests],
            ]
            # side by side on the logarithmic axis
            places = [steps * 1.03 ** (number - 2) for steps in LENGTHS]
            middle = [test.difference for test in tests]
            axes.errorbar(places, middle, errors, marker="o", ms=3.5, lw=1.2, color=COLORS[number], label=arm)
        axes.axhline(0, color="#57606a", lw=0.8)
        axes.set(xscale="log", title=describe(cell).capitalize(), xlabel="steps", ylabel="− CLIP, points")
        axes.set_xticks(LENGTHS, [f"{steps:,}" for steps in LENGTHS])
        axes.minorticks_off()
        axes.title.set_fontsize(9)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(RUNS.with_name("results_lengths.png"), dpi=120, metadata={"Software": None})


def _table(cell: Cell, rows: list[dict[str, Any]]) -> Table:
    """Return the table of a cell: each arm after each length."""
    explained = {
        (row["metric"], row["model"], row["lr"], row["steps"]): np.array(row["values"])[: len(SEEDS)]
        for row in rows
        if (row["kind"], row["sigma"]) == cell and row["metric"] != "acc1"
    }
    lines = []
    for steps in LENGTHS:
        chosen = accuracies(rows, cell, steps)
        for arm, (rate, values) in chosen.items():
            line = {
                "arm": arm,
                "steps": f"{steps:,}",
                "rate": f"{rate:g}",
                "accuracy": percent(values.mean()),
            }
            if arm != ARMS[0]:
                test = compare_runs(100 * values, 100 * chosen[ARMS[0]][1], paired=True)
                line["− CLIP"] = f"{test.difference:+.2f} ({test.low:+.2f} to {test.high:+.2f})"
            if ("lambda", arm, rate, steps) in explained:
                own = explained["lambda", arm, rate, steps]
                line["λ"] = f"{np.median(own):.2f}, {np.mean(own < 0):.0%}"
                for name, metric in (("A1, A2", "map_correlation"), ("changes", "change_correlation")):
                    line[name] = f"{np.median(explained[metric, arm, rate, steps]):+.2f}"
            lines.append(
                {name: text.replace("-", "−") if name != "arm" else text for name, text in line.items()}
            )
    return Table("lengths", describe(cell), pd.DataFrame(lines).fillna(""))


if __name__ == "__main__":
    main()

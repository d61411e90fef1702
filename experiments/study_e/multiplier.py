"""Experiment E: how many steps of CLIP is differential attention worth?

Scenes with sixteen distractors, each seen once. A run is a trunk with a constant learning rate, from which the rate
falls linearly to 0 over the last fifth of 500, 1,000, 2,000 and 4,000 steps. All seeds of an arm and a rate are trained
side by side: their parameters are stacked, and `torch.func.vmap` runs the model. Seeds share the scenes, in an order of
their own.

python -m experiments.study_e.multiplier --output FOLDER --cache FOLDER [--device cuda] [--minutes 9] [--rehearse]

Each finished stack (an arm at a rate) is added to OUTPUT/runs.csv, and the next call goes on after it. With all of them
there, results.csv is written; with both files in this folder, `make experiments` writes the page. `--rehearse` takes a
tenth of all lengths and four seeds, for a CPU.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from diffclip import CLIP
from diffclip.benchmarking.timing import take_turns
from diffclip.data.workers import map_processes
from diffclip.errors import DiffCLIPError
from diffclip.evaluation.metrics import retrieval_metrics, retrieval_ranks
from diffclip.evaluation.records import Record, write_table
from diffclip.evaluation.verdicts import read_verdicts
from diffclip.files import write_atomically
from diffclip.preprocess import normalize
from diffclip.report.tables import Table
from diffclip.scenes import draw_scene
from diffclip.tokenizer import Tokenizer
from diffclip.training.optimizer import MAX_LOGIT_SCALE
from diffclip.training.recipe import read_recipe
from experiments.seed_rows import read_rows, write_rows

FOLDER = Path(__file__).parent
ARMS = ("CLIP", "CLIP-half-heads-vision", "DiffCLIP-vision")
RATES = (1e-3, 2e-3)
LENGTHS = (500, 1000, 2000, 4000)
COOLDOWN = 0.2
"""Share of a length in which the rate falls to 0."""
SEEDS, SWEEP_SEEDS = tuple(range(12)), tuple(range(1000, 1004))
BATCH, WARMUP, SIZE, DISTRACTORS, TEST, CAPTIONS = 32, 50, 64, 16, 500, 5
PART = 500  # scenes that a process draws at a time
PRIMARY = 2000
"""Length of the primary endpoint: CLIP's curve has lengths on both sides of it."""
CHANGES = (
    "architecture.embed_dim=64",
    "architecture.vision={image_size: 64, patch_size: 8, width: 64, layers: 2, heads: 8}",
    "architecture.text={context_length: 32, width: 64, layers: 2, heads: 8}",
)

State = dict[str, Tensor]
Values = npt.NDArray[np.float64]


class Scenes(NamedTuple):
    """Images [N, 3, S, S] (uint8) and captions [N, C, L] (token ids)."""

    images: Tensor
    tokens: Tensor

    def to(self, device: str) -> Scenes:
        return Scenes(self.images.to(device), self.tokens.to(device))


def draw_part(split: str, numbers: range) -> tuple[Any, list[list[str]]]:
    """Draw scenes: images [N, S, S, 3], and the captions of each."""
    scenes = [draw_scene(number, split=split, size=SIZE, distractors=DISTRACTORS) for number in numbers]
    return np.stack([scene.image for scene in scenes]), [list(scene.captions[:CAPTIONS]) for scene in scenes]


def open_scenes(cache: Path, split: str, count: int, workers: int) -> Scenes:
    """Draw the first `count` scenes of a split, or load them from `cache`."""
    file = cache / f"{split}-{count}.pt"
    if not file.is_file():
        tokenizer = Tokenizer(model_config(ARMS[0]).text)
        parts = [range(start, min(start + PART, count)) for start in range(0, count, PART)]
        drawn = map_processes(functools.partial(draw_part, split), parts, workers)
        images, captions = zip(*drawn, strict=True)
        texts = [text for part_texts in captions for own in part_texts for text in own]
        scenes = Scenes(
            torch.from_numpy(np.concatenate(images)).permute(0, 3, 1, 2).contiguous(),
            tokenizer(texts).view(count, CAPTIONS, -1),
        )
        with write_atomically(file) as temporary:
            torch.save(dict(scenes._asdict()), temporary)
    return Scenes(**torch.load(file, weights_only=True))


@functools.cache
def recipe(arm: str) -> Any:
    return read_recipe("scenes_demo", [f"model={arm}", *CHANGES])


def model_config(arm: str) -> Any:
    return recipe(arm).config()


def stack_models(arm: str, seeds: Sequence[int], device: str) -> tuple[CLIP, State]:
    """Return a model without values, and the starting values of all seeds, stacked [seeds, …]."""
    models = [CLIP(model_config(arm), attention_backend="eager", seed=seed) for seed in seeds]
    state = stack_module_state(models)[0]
    skeleton = CLIP(model_config(arm), attention_backend="eager", seed=0).to("meta")
    return skeleton, {name: value.detach().to(device).requires_grad_() for name, value in state.items()}


def make_loss(skeleton: CLIP) -> Callable[[State, Tensor, Tensor], Tensor]:
    """Return the contrastive loss of all stacked models, [seeds], for their own images and texts [seeds, B, …]."""

    def loss(state: State, images: Tensor, tokens: Tensor) -> Tensor:
        out = functional_call(skeleton, state, (images, tokens))
        logits = out["logit_scale"] * out["image_features"] @ out["text_features"].mT
        log_diagonal = logits.log_softmax(-1).diagonal() + logits.log_softmax(-2).diagonal()
        return -log_diagonal.mean() / 2

    return vmap(loss)


class Trainer:
    """The stack of one arm at one rate, with its optimizer and its place in the data."""

    def __init__(self, arm: str, rate: float, seeds: Sequence[int], scenes: Scenes) -> None:
        self.arm, self.rate, self.scenes = arm, rate, scenes
        device = str(scenes.images.device)
        skeleton, self.state = stack_models(arm, seeds, device)
        self.loss = make_loss(skeleton)
        settings = recipe(arm)
        decayed = [value for value in self.state.values() if value.ndim >= 3]
        others = [value for value in self.state.values() if value.ndim < 3]
        groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
        options = {
            "lr": rate,
            "betas": settings.betas,
            "eps": settings.eps,
            "weight_decay": settings.weight_decay,
        }
        self.optimizer = torch.optim.AdamW(groups, **options)
        orders = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.order = torch.stack([torch.randperm(len(scenes.images), generator=own) for own in orders]).to(
            device
        )
        self.caption = torch.stack(
            [torch.randint(CAPTIONS, (len(scenes.images),), generator=own) for own in orders]
        ).to(device)

    def step(self, number: int, rate: float) -> None:
        """Make step `number`, counted from 0, of all models."""
        chosen = self.order[:, number * BATCH : (number + 1) * BATCH]
        images = normalize(self.scenes.images[chosen.flatten()], model_config(self.arm).preprocess)
        images = images.unflatten(0, chosen.shape)
        tokens = self.scenes.tokens[chosen, self.caption.gather(1, chosen)]
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        self.loss(self.state, images, tokens).sum().backward()  # the models share no parameter
        self.optimizer.step()
        with torch.no_grad():
            self.state["logit_scale"].clamp_(0, MAX_LOGIT_SCALE)

    def snapshot(self) -> Any:
        return (
            {name: value.detach().clone() for name, value in self.state.items()},
            [
                {key: value.clone() for key, value in self.optimizer.state[parameter].items()}
                for parameter in self.state.values()
            ],
        )

    def restore(self, saved: Any) -> None:
        values, states = saved
        with torch.no_grad():
            for name, value in self.state.items():
                value.copy_(values[name])
        for parameter, state in zip(self.state.values(), states, strict=True):
            self.optimizer.state[parameter] = {key: value.clone() for key, value in state.items()}

    def run(self, lengths: Sequence[int], measure: Callable[[State], list[float]]) -> dict[int, list[float]]:
        """Train the trunk, and a cool-down for each of `lengths`; return what `measure` says after each."""
        found, done = {}, 0
        for length in lengths:
            ending = length - max(1, round(COOLDOWN * length))
            for number in range(done, ending):
                self.step(number, self.rate * min(1.0, (number + 1) / WARMUP))
            done, trunk = ending, self.snapshot()
            for number in range(ending, length):
                self.step(number, self.rate * (length - number) / (length - ending))
            found[length] = measure({name: value.detach() for name, value in self.state.items()})
            self.restore(trunk)
        return found


def mean_recall(arm: str, test: Scenes, state: State) -> list[float]:
    """Return the mean of the six recalls of each stacked model, in percent."""
    skeleton = CLIP(model_config(arm), attention_backend="eager", seed=0).to(test.images.device).eval()
    owner = torch.arange(len(test.images)).repeat_interleave(CAPTIONS)
    recalls = []
    for lane in range(len(state["logit_scale"])):
        with torch.inference_mode():
            skeleton.load_state_dict({name: value[lane] for name, value in state.items()})
            images = skeleton.encode_image(
                normalize(test.images, model_config(arm).preprocess), normalize=True
            )
            texts = skeleton.encode_text(test.tokens.flatten(0, 1), normalize=True)
        recalls.append(
            100 * float(np.mean(list(retrieval_metrics(*retrieval_ranks(images, texts, owner)).values())))
        )
    return recalls


def step_milliseconds(scenes: Scenes, seeds: Sequence[int], rounds: int) -> dict[str, list[float]]:
    """Time a step of each arm's stack, in turns of ten steps."""

    def sampler(trainer: Trainer) -> Callable[[], float]:
        def turn() -> float:
            synchronize(scenes)
            started = time.perf_counter()
            for number in range(10):
                trainer.step(number, 0.0)
            synchronize(scenes)
            return 100 * (time.perf_counter() - started)

        return turn

    samplers = {arm: sampler(Trainer(arm, RATES[0], seeds, scenes)) for arm in ARMS}
    milliseconds, failures = take_turns(samplers, rounds)
    for arm, reason in failures.items():
        raise DiffCLIPError(f"a step of {arm} cannot be timed: {reason}")
    return milliseconds


def synchronize(scenes: Scenes) -> None:
    if scenes.images.is_cuda:
        torch.cuda.synchronize()


def run_parts(options: argparse.Namespace) -> None:
    """Run the stacks that OUTPUT/runs.csv lacks, as many as the minutes allow."""
    started, longest = time.monotonic(), 0.0
    file = options.output / "runs.csv"
    options.output.mkdir(parents=True, exist_ok=True)
    lengths = [length // 10 if options.rehearse else length for length in LENGTHS]
    seeds = (SEEDS + SWEEP_SEEDS)[-4 if options.rehearse else 0 :]
    train = open_scenes(options.cache, "train", lengths[-1] * BATCH, options.workers).to(options.device)
    test = open_scenes(options.cache, "test", TEST, options.workers).to(options.device)
    rows = read_rows(file)
    if not any(row["metric"] == "step_milliseconds" for row in rows):
        for arm, times in step_milliseconds(train, seeds, 3 if options.rehearse else 7).items():
            rows.append(
                {"model": arm, "lr": RATES[0], "steps": 0, "metric": "step_milliseconds", "values": times}
            )
        write_rows(file, rows)
    for rate in RATES:
        for arm in ARMS:
            if any((row["model"], row["lr"], row["metric"]) == (arm, rate, "mean_recall") for row in rows):
                continue
            part = time.monotonic()
            if options.minutes and part - started + longest > 60 * options.minutes:
                print("out of time: the same command goes on", flush=True)
                return
            found = Trainer(arm, rate, seeds, train).run(lengths, functools.partial(mean_recall, arm, test))
            rows += [
                {"model": arm, "lr": rate, "steps": steps, "metric": "mean_recall", "values": values}
                for steps, values in found.items()
            ]
            write_rows(file, rows)
            longest = max(longest, time.monotonic() - part)
            means = ", ".join(f"{np.mean(values):.1f}" for values in found.values())
            print(f"{arm} at {rate:g}: {time.monotonic() - part:.0f} s, recalls {means}", flush=True)


def equivalent_steps(recalls: Values, curve: Mapping[int, float]) -> Values:
    """Return the logarithm (base 2) of the steps at which CLIP's mean curve reaches each recall: linear in between, and
    beyond the first and last length along the nearest segment."""
    steps, heights = np.log2(list(curve)), np.maximum.accumulate(list(curve.values()))
    segment = np.clip(np.searchsorted(heights, recalls) - 1, 0, len(steps) - 2)
    slope = (steps[segment + 1] - steps[segment]) / np.maximum(heights[segment + 1] - heights[segment], 1e-9)
    return np.asarray(steps[segment] + (recalls - heights[segment]) * slope)


def recalls(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, dict[int, Values]]]:
    """Return the chosen rate of each arm, and after each length the recalls of the reported seeds."""
    n, chosen = len(SEEDS), {}
    for arm in ARMS:
        by_rate: dict[float, dict[int, Values]] = {rate: {} for rate in RATES}
        for row in rows:
            if (row["model"], row["metric"]) == (arm, "mean_recall"):
                by_rate[row["lr"]][row["steps"]] = np.array(row["values"])
        best = max(RATES, key=lambda rate: by_rate[rate][max(by_rate[rate])][n:].mean())
        chosen[arm] = best, {steps: values[:n] for steps, values in by_rate[best].items()}
    return chosen


def write_results(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write what the spec compares into results.csv: the steps and compute that each run is worth, as logarithms."""
    table = recalls(rows)
    curve = {steps: float(values.mean()) for steps, values in table[ARMS[0]][1].items()}
    facts: dict[str, Any] = {"task": "worth", "dataset": "scenes", "split": "test"}
    facts |= {"count": TEST, "low": None, "high": None, "steps": PRIMARY, "weights": ""}
    facts["protocol"] = "steps at which CLIP's mean recall reaches that of the run"
    records = []
    for arm, (_, values) in table.items():
        worth = equivalent_steps(values[PRIMARY], curve)
        for metric, own in (("log2_compute", worth - np.log2(cost_of(arm, rows))), ("log2_steps", worth)):
            records += [
                Record(**facts, model=arm, seed=seed, metric=metric, value=value)
                for seed, value in zip(SEEDS, own.tolist(), strict=True)
            ]
    write_table(folder, records)


def cost_of(arm: str, rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the ratio of step times, of the arm to CLIP: of the medians."""
    times = {row["model"]: np.median(row["values"]) for row in rows if row["metric"] == "step_milliseconds"}
    return float(times[arm] / times[ARMS[0]])


def multipliers() -> str:
    """Return the section of the page about recalls, and what each arm is worth in steps and in time."""
    rows = read_rows(FOLDER / "runs.csv")
    table = [
        {"arm": arm, "rate": f"{rate:g}", "time of a step": f"{cost_of(arm, rows):.2f}"}
        | {f"{steps:,} steps": f"{own.mean():.1f}" for steps, own in values.items()}
        for arm, (rate, values) in recalls(rows).items()
    ]
    lines = ["## Recalls and multipliers\n", Table("recalls", "", pd.DataFrame(table)).to_markdown(), ""]
    lines += [f"Mean recall in percent over {len(SEEDS)} seeds. A run of {PRIMARY:,} steps is worth:\n"]
    for verdict in read_verdicts(FOLDER).itertuples():
        unit = {"log2_compute": "time", "log2_steps": "steps"}[verdict.metric]
        middle, low, high = (2**value for value in (verdict.difference, verdict.low, verdict.high))
        lines.append(f"- {verdict.arm}: {middle:.2f} times CLIP's {unit} ({low:.2f} to {high:.2f}).")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of runs.csv")
    parser.add_argument("--cache", type=Path, required=True, help="folder for the drawn scenes")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, help="start no stack that would end later")
    parser.add_argument("--workers", type=int, default=16, help="processes that draw")
    parser.add_argument("--rehearse", action="store_true", help="a tenth of the lengths, four seeds")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    run_parts(options)
    rows = read_rows(options.output / "runs.csv")
    wanted = len(ARMS) * len(RATES) * len(LENGTHS)
    if not options.rehearse and sum(row["metric"] == "mean_recall" for row in rows) == wanted:
        write_results(rows, options.output)


if __name__ == "__main__":
    main()

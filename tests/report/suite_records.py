"""Records as the suites leave them, with made-up but reproducible numbers, and the paper's own numbers as records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from diffclip.data.mmvp import PATTERNS
from diffclip.evaluation.averages import with_averages
from diffclip.evaluation.linear_probe import tuned_per_class
from diffclip.evaluation.protocol import drawn, with_particulars
from diffclip.evaluation.records import Record
from diffclip.report.paper import paper_numbers

SIZE = "ViT-B-16"
NINE = ("caltech101", "dtd", "pets", "flowers", "sun397", "fgvc_aircraft", "cifar10", "cifar100", "food101")
RETRIEVAL = ("flickr8k", "flickr30k", "mscoco_captions")
SHIFTS = ("imagenetv2", "imagenet-a", "imagenet-r", "imagenet_sketch")
# accuracy that a CLIP may have on each set, and its number of items
LEVELS = {
    **dict(zip(NINE, (0.72, 0.59, 0.61, 0.86, 0.54, 0.36, 0.83, 0.63, 0.59), strict=True)),
    **dict(zip(RETRIEVAL, (0.35, 0.32, 0.19), strict=True)),
    "imagenet1k": 0.136,
    **dict(zip(SHIFTS, (0.115, 0.03, 0.15, 0.06), strict=True)),
}
COUNTS = {"imagenet1k": 50000, "flickr8k": 5000, "flickr30k": 5000, "mscoco_captions": 25000}


def suite_records(
    models: Mapping[str, float],
    seeds: Sequence[int] = (0,),
    draws: Sequence[int] = (0,),
    without: Mapping[str, Sequence[str]] | None = None,
    corruptions: Sequence[str] = (),
    averages: bool = True,
) -> list[Record]:
    """The paper suite of each model in `models`, whose value is its gain over the levels above.

    Args:
        models: variant → gain, a fraction.
        seeds: training seeds.
        draws: of linear probe and few-shot.
        without: variant → sets that it was not measured on.
        corruptions: further sets, such as "cifar10+noise:3".
        averages: add the derived averages.
    """
    found: list[Record] = []
    for model, gain in models.items():
        left_out = (without or {}).get(model, ())
        for seed in seeds:
            own = _Maker(model, seed, gain)
            for dataset in [one for one in NINE if one not in left_out]:
                metrics = ("mean_per_class_recall", "acc1") if tuned_per_class(dataset) else ("acc1",)
                for draw in draws:
                    for metric in metrics:
                        own.add("linear-probe", dataset, metric, LEVELS[dataset], draw=draw)
                    own.add("few-shot", dataset, "acc1", min(0.93, 1.2 * LEVELS[dataset]), draw=draw)
                own.add("zero-shot", dataset, "acc1", 0.4 * LEVELS[dataset])
            for dataset in [one for one in RETRIEVAL if one not in left_out]:
                own.add("retrieval", dataset, "image_retrieval_recall@5", LEVELS[dataset])
                own.add("retrieval", dataset, "text_retrieval_recall@5", 1.25 * LEVELS[dataset])
            for dataset in [one for one in ("imagenet1k", *SHIFTS) if one not in left_out]:
                own.add("zero-shot", dataset, "acc1", LEVELS[dataset])
            for dataset in corruptions:
                own.add("zero-shot", dataset, "acc1", 0.25 * LEVELS[dataset.partition("+")[0]])
            if "mmvp" not in left_out:
                own.pairs()
            found += own.records
    return with_averages(found) if averages else found


def paper_records() -> list[Record]:
    """The paper's Tables 1 and 2 as records without intervals, one architecture for each pretraining set."""
    tasks = {
        "linear-probe": ("linear-probe", None),
        "few-shot": ("few-shot", "acc1"),
        "image-retrieval": ("retrieval", "image_retrieval_recall@5"),
        "text-retrieval": ("retrieval", "text_retrieval_recall@5"),
        "zero-shot": ("zero-shot", "acc1"),
    }
    found = []
    for table in paper_numbers().tables:
        if table.name not in tasks:
            continue
        task, metric = tasks[table.name]
        for row in table.rows:
            for dataset, value in zip(table.sets, row.values, strict=True):
                usual = "mean_per_class_recall" if tuned_per_class(dataset) else "acc1"
                found.append(
                    Record(
                        model=f"{row.model}-{row.pretraining}",
                        weights=f"{row.model}-{row.pretraining}",
                        task=task,
                        dataset=dataset,
                        split="test",
                        metric=metric or usual,
                        value=value / 100,
                        count=1000,
                        low=None,
                        high=None,
                        seed=0,
                        protocol=task,
                    )
                )
    return with_averages(found)


class _Maker:
    """Adds the records of one trained model."""

    def __init__(self, model: str, seed: int, gain: float) -> None:
        self.model, self.seed, self.gain = model, seed, gain
        self.random = np.random.default_rng([seed, len(model)])
        self.records: list[Record] = []

    def add(self, task: str, dataset: str, metric: str, level: float, draw: int | None = None) -> None:
        value = level * (1 + self.gain * float(self.random.uniform(0.2, 2))) + 0.002 * float(
            self.random.standard_normal()
        )
        protocol = f"{task}; ties count against; 95 % bootstrap over pictures"
        if draw is not None:
            value += 0.002 * float(self.random.standard_normal())
            protocol = with_particulars(protocol, drawn(draw))
        self._append(task, dataset, metric, min(1.0, max(0.0, value)), COUNTS.get(dataset, 3000), protocol)

    def pairs(self) -> None:
        right = self.random.binomial(15, min(0.9, 0.24 * (1 + 3 * self.gain)), size=len(PATTERNS))
        protocol = "mmvp; 135 pairs, 9 of 9 patterns; ties count against; chance 25 %"
        whole = float(right.sum() / 135)
        self._append("mmvp", "mmvp", "mean_per_pattern_accuracy", whole, 135, protocol)
        self._append("mmvp", "mmvp", "pair_accuracy", whole, 135, protocol)
        self._append("mmvp", "mmvp", "statement_accuracy", 0.5 + whole / 4, 270, protocol)
        for pattern, count in zip(PATTERNS, right.tolist(), strict=True):
            self._append("mmvp", "mmvp", f"pair_accuracy/{pattern}", count / 15, 15, protocol)

    def _append(self, task: str, dataset: str, metric: str, value: float, count: int, protocol: str) -> None:
        half = 1.96 * math.sqrt(value * (1 - value) / count)
        self.records.append(
            Record(
                model=f"{self.model}-{SIZE}",
                weights=f"{self.model}-s{self.seed}/checkpoints/best",
                task=task,
                dataset=dataset,
                split="test",
                metric=metric,
                value=value,
                count=count,
                low=max(0.0, value - half),
                high=min(1.0, value + half),
                seed=self.seed,
                protocol=protocol,
            )
        )

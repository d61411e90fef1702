"""Records of the task `focus` as the evaluation leaves them, with made-up but reproducible numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from diffclip.evaluation.focus_names import detail
from diffclip.evaluation.outcomes import ItemOutcomes, key_of
from diffclip.evaluation.records import Record

SIZE = "v64x4x4p8-t64x2x2"
PROTOCOL = "focus; 8×8 patches, each as object by how much the mask covers; ties count half"
PICTURES, TEXTS = 20, 2
LAYERS, HEADS = 4, 4
# the level of each measure, whether masks are needed or not
_DETECTION = {"auroc": 0.6, "ap": 0.3, "inside": 0.25, "inside_over_area": 1.3, "pointing": 0.35}
_SHAPE = {"entropy": 0.8, "effective_patches": 30.0, "top10": 0.4, "background10": 0.3}
_ROW = {**_DETECTION, **_SHAPE, "class_token": 0.05}


def focus_records(
    models: Mapping[str, float],
    seeds: Sequence[int] = (0,),
    dataset: str = "scenes",
    pair: Mapping[str, float] | None = None,
    details: bool = True,
    protocol: str = PROTOCOL,
    hits: bool = False,
) -> tuple[list[Record], dict[str, ItemOutcomes]]:
    """Everything the task says of each of `models`, whose value is its gain over the levels above.

    Args:
        models: variant → gain, a share.
        seeds: training seeds.
        dataset: where.
        pair: the differences of A1 and A2 of differential models by measure ("inside", "entropy", "top10").
        details: by layer and head as well.
        protocol: of every record.
        hits: give the outcomes of items of headlines and layers.
    """
    records: list[Record] = []
    outcomes: dict[str, ItemOutcomes] = {}
    for model, gain in models.items():
        for seed in seeds:
            rng = np.random.default_rng([seed, len(model)])

            def add(metric: str, level: float, spread: float = 0.1, whole: bool = True) -> None:
                values = level + spread * level * rng.standard_normal(PICTURES * TEXTS)  # noqa: B023
                value = float(values.mean())
                half = 1.96 * float(values.std()) / np.sqrt(len(values))
                one = Record(
                    model=f"{model}-{SIZE}",  # noqa: B023
                    weights=f"{model}-s{seed}/checkpoints/best",  # noqa: B023
                    task="focus",
                    dataset=dataset,
                    split="test",
                    metric=metric,
                    value=value,
                    count=len(values),
                    low=value - half,
                    high=value + half,
                    seed=seed,  # noqa: B023
                    protocol=protocol,
                )
                records.append(one)
                if hits and whole:
                    outcomes[key_of(one)] = ItemOutcomes(values, np.repeat(np.arange(PICTURES), TEXTS))

            def everywhere(metric: str, level: float, heads: int) -> None:
                add(metric, level)
                if details:
                    for layer in range(1, LAYERS + 1):
                        add(detail(metric, layer), level * (0.9 + 0.05 * layer))
                        for head in range(1, heads + 1):
                            add(detail(metric, layer, head), level * (0.8 + 0.1 * head), whole=False)

            differential = model != "CLIP"
            heads = HEADS // (1 + differential)
            for name, level in {**_DETECTION, **_SHAPE}.items():
                everywhere(f"relevance_{name}", level * (1 + gain), heads)
                add(f"rollout_{name}", level)
            for name, level in _ROW.items():
                everywhere(f"attention_{name}", level * (1 - gain / 2), heads)
            if differential:
                for name, level in _ROW.items():
                    everywhere(f"A1_{name}", level * 1.05, heads)
                    everywhere(f"A2_{name}", level * 0.95, heads)
                for name, level in (pair or {"inside": 0.03, "entropy": -0.05, "top10": 0.06}).items():
                    everywhere(f"A1_minus_A2_{name}", level, heads)
                everywhere("A1_A2_correlation", 0.4, heads)
    return records, outcomes

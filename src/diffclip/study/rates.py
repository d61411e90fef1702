"""The learning rate of an arm that ran at several: for each run the best one in the other folds or seeds.

The rate of a run is chosen without that run's fold (nested cross-validation, Stone 1974), so that an interval over
folds includes the choice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from statistics import fmean
from typing import TYPE_CHECKING

from diffclip.evaluation.records import Record
from diffclip.names import metric_of

if TYPE_CHECKING:
    from diffclip.study.spec import Study


def with_chosen_rates(
    records: Iterable[Record], study: Study, ended: Collection[tuple[str, int]]
) -> list[Record]:
    """Return the records with those of each arm at its chosen rate, for arms that have finished all runs at all rates.

    For each run the rate is the one with the best mean of the primary endpoint in the other folds (without folds:
    with the other seeds). The records of the run at that rate are repeated under the arm's own name. A rate at which a
    run diverged is not chosen.

    Args:
        ended: the finished runs, those that diverged included: the arm at a rate (`CLIP@5e-4`) and the seed.
    """
    grids = {arm: grid for grid in study.grids.values() for arm in grid.arms if grid.rates(arm)}
    kept = [record for record in records if record.model not in grids]
    by_model: dict[str, list[Record]] = defaultdict(list)
    for record in kept:
        by_model[record.model].append(record)
    for arm, grid in grids.items():
        seeds = study.run_seeds(grid)
        if all((name, seed) in ended for name in grid.rates(arm) for seed in seeds):
            by_rate = [[one for one in by_model[name] if one.seed in seeds] for name in grid.rates(arm)]
            kept += [
                record.model_copy(update={"model": arm, "protocol": f"{record.protocol}; as {record.model}"})
                for record in _choose(by_rate, study, len(seeds))
            ]
    return kept


def _choose(by_rate: list[list[Record]], study: Study, runs: int) -> list[Record]:
    """Choose for each run among the records of an arm at its rates; empty if runs diverged at every rate, or
    if there is no other run to choose by."""
    primary = study.endpoints.primary
    better = metric_of(primary.metric).better
    # by rate, the value of each seed: the mean over draws, if the task draws
    scores: list[dict[int, float]] = []
    for records in by_rate:
        values = defaultdict[int, list[float]](list)
        for record in primary.select(records):
            if record.value is not None:
                values[record.seed or 0].append(better * record.value)
        scores.append({seed: fmean(draws) for seed, draws in values.items()})
    candidates = [rate for rate, values in enumerate(scores) if len(values) == runs]
    chosen: list[Record] = []
    for seed in scores[candidates[0]] if candidates and runs > 1 else ():
        others = [
            other
            for other in scores[candidates[0]]
            if (other != seed if study.folds is None else (other - seed) % study.folds)
        ]
        best = max(candidates, key=lambda rate: fmean(scores[rate][other] for other in others))
        chosen += [record for record in by_rate[best] if record.seed == seed]
    return chosen

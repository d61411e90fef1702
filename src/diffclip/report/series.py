"""Which runs and records belong together: a series is one model (and init) in all its seeds.

Series are what tables have rows and figures have colours for. A label names the init where it is not the usual one of
the report, and that a run was fine-tuned where others were not; two sources that are still not told apart get the name
of their run or weights into it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diffclip.config import ABLATIONS, VARIANTS
from diffclip.errors import InputError
from diffclip.evaluation.averages import Part, averages_of, is_derived
from diffclip.evaluation.focus_names import is_detail
from diffclip.evaluation.outcomes import ItemOutcomes
from diffclip.evaluation.protocol import draw_of, method_of
from diffclip.evaluation.records import Record
from diffclip.report.belonging import course_of, is_ambiguous, run_of, step_of, training_of
from diffclip.report.runs import FINE_TUNED, Run, variant_of_label

_ORDER = [*VARIANTS, *ABLATIONS, "custom"]


@dataclass(frozen=True)
class Series:
    """One model with one init. `label` is what readers see, `size` the model's name without its variant."""

    label: str
    model: str
    variant: str
    init: str | None

    @property
    def size(self) -> str:
        return self.model.removeprefix(self.variant).removeprefix("-")


@dataclass(frozen=True)
class Result:
    """One evaluation record with the series and the training seed that it belongs to.

    `parts` are what an average over sets is made of, none for a number that was measured.
    """

    record: Record
    series: Series
    seed: int | None
    parts: tuple[Part, ...] = ()

    @property
    def draw(self) -> int | None:
        """The seed of what the task drew at random; None where nothing was."""
        return draw_of(self.record.protocol)

    @property
    def value(self) -> float:
        """The record's value, NaN where it has none."""
        return math.nan if self.record.value is None else self.record.value


@dataclass(frozen=True)
class Measured:
    """One measure of one training seed: its result, or where the task was drawn several times that of each draw.

    `value`, `low` and `high` are means over the draws; the bounds cover the test set. `sd` (n − 1) is over draws, None
    for a single one.
    """

    results: tuple[Result, ...]

    @classmethod
    def of(cls, results: Iterable[Result]) -> Measured:
        """The results in the order of their draws."""
        return cls(tuple(sorted(results, key=lambda one: -1 if one.draw is None else one.draw)))

    @property
    def record(self) -> Record:
        """That of the first draw."""
        return self.results[0].record

    @property
    def records(self) -> list[Record]:
        return [result.record for result in self.results]

    @property
    def value(self) -> float:
        return statistics.fmean(result.value for result in self.results)

    @property
    def low(self) -> float | None:
        return _mean([record.low for record in self.records])

    @property
    def high(self) -> float | None:
        return _mean([record.high for record in self.records])

    @property
    def sd(self) -> float | None:
        values = [result.value for result in self.results]
        return statistics.stdev(values) if len(values) > 1 else None

    @property
    def draws(self) -> int:
        return len(self.results)

    @property
    def drawn(self) -> set[int | None]:
        """The seeds of the draws."""
        return {result.draw for result in self.results}

    def only(self, draws: set[int | None]) -> Measured:
        """Without the other draws."""
        return Measured(tuple(result for result in self.results if result.draw in draws))


@dataclass(frozen=True, eq=False)
class Collection:
    """Everything a report is about, in the order of the variants (CLIP first).

    `results` hold the averages over sets beside what was measured; `outcomes` are those of single items, by `key_of`
    of the record, where they are known. `course` has what was measured on the checkpoints of a training, each with its
    step, where there are enough of them to draw a line; `results` then have the last one only. `details` are the
    hundreds of numbers by layer and head of the task `focus`, which are no results by themselves.
    """

    series: list[Series]
    runs: list[tuple[Series, Run]]
    results: list[Result]
    outcomes: Mapping[str, ItemOutcomes] = field(default_factory=dict)
    course: list[tuple[int, Result]] = field(default_factory=list)
    details: list[Result] = field(default_factory=list)

    @property
    def datasets(self) -> list[str]:
        """The sets that something was measured on."""
        return list(dict.fromkeys(one.record.dataset for one in self.results if not is_derived(one.record)))

    @property
    def architecture(self) -> str | None:
        """The size that all models share, which their labels therefore leave out."""
        sizes = {series.size for series in self.series}
        return sizes.pop() if len(sizes) == 1 and sizes != {""} else None


@dataclass(frozen=True)
class _Source:
    """What was trained once: a run, or weights that records speak of."""

    name: str
    model: str
    init: str | None
    seed: int | None


def collect(
    runs: Sequence[Run], records: Sequence[Record], outcomes: Mapping[str, ItemOutcomes] | None = None
) -> Collection:
    """Sort runs and records into series, and add the averages over sets that follow from them.

    A run's own records belong to it; of the others, those whose `weights` lie in a run's folder (by its
    name) do. A record that occurs twice counts once, and the later one does (two draws of one task are not
    twice). Two checkpoints of a run are two series; three or more, as `evaluate --watch` leaves them, are the course
    of one.

    Args:
        outcomes: of single items, as `read_outcomes_of` finds them; paired tests need them.

    Raises:
        InputError: runs of one name in several folders, and records of which it is not known whose they are.
    """
    given = [(run_of(record, runs), record) for record in records]
    given = [(run, record) for run in runs for record in run.records] + given
    given = [(run, record) for run, record in given if not is_derived(record)]
    course = course_of([record for _, record in given])
    last = {training: max(step for step, _ in steps) for training, steps in course.items()}
    given = [
        (run, record)
        for run, record in given
        if training_of(record) not in last or step_of(record) == last[training_of(record)]
    ]
    checkpoints: dict[str, set[str]] = {}
    for run, record in given:
        if run is not None:
            checkpoints.setdefault(str(run.folder), set()).add(Path(record.weights).name)

    # saved runs have no weights to tell their model's whole name, but their records do
    models = {str(run.folder): run.model for run in runs}
    models |= {str(run.folder): record.model for run, record in given if run is not None}
    sources = {
        key: _Source(run.name, models[key], run.init, run.seed) for run in runs for key in [str(run.folder)]
    }
    owned: dict[str, dict[tuple[object, ...], Record]] = {}
    owners: dict[tuple[object, ...], str] = {}
    for run, record in given:
        checkpoint = Path(record.weights).name
        if run is None:
            owner = f"{record.model}\0{record.weights}\0{record.seed}"
            sources.setdefault(owner, _Source(_short(record.weights), record.model, None, record.seed))
        elif len(checkpoints[str(run.folder)]) == 1:
            owner = str(run.folder)
        else:
            owner = f"{run.folder}\0{checkpoint}"
            sources.setdefault(owner, _Source(f"{run.name}/{checkpoint}", record.model, run.init, run.seed))
        owners[training_of(record)] = owner
        method, draw = method_of(record.protocol), draw_of(record.protocol)
        measure = (record.task, record.dataset, record.split, record.metric, method, draw)
        known = owned.setdefault(owner, {}).setdefault(measure, record)
        if run is None and known.value != record.value and is_ambiguous(record, runs):
            raise InputError(
                f"several runs are called as in {record.weights}, and results differ: rename one, or report them apart"
            )
        owned[owner][measure] = record

    series = _series(sources)
    order = sorted(
        set(series.values()), key=lambda one: (_ORDER.index(one.variant), one.size, one.init or "", one.label)
    )
    results = [
        Result(record, series[owner], sources[owner].seed if record.seed is None else record.seed, parts)
        for owner, own in owned.items()
        for record, parts in _with_averages(list(own.values()))
    ]
    return Collection(
        series=order,
        runs=sorted(
            ((series[str(run.folder)], run) for run in runs),
            key=lambda pair: (
                order.index(pair[0]),
                pair[1].seed if pair[1].seed is not None else -1,
                pair[1].name,
            ),
        ),
        results=[one for one in results if not is_detail(one.record.metric)],
        outcomes=outcomes or {},
        course=[
            (step, Result(record, series[owners[training]], record.seed))
            for training, steps in course.items()
            for step, record in steps
            if not is_detail(record.metric)
        ],
        details=[one for one in results if is_detail(one.record.metric)],
    )


def usual_init(inits: Sequence[str]) -> str | None:
    """The init that most have (of equally many the first), which labels leave out; None for none."""
    return max(dict.fromkeys(inits), key=inits.count, default=None)


def inits_of(series: Iterable[Series]) -> list[str]:
    """The inits of those that began with fresh values, where they are known."""
    return [one.init for one in series if one.init and one.init != FINE_TUNED]


def baseline_of(series: Series, among: Sequence[Series]) -> Series | None:
    """The CLIP that `series` is fairly compared with: of its size, and of its init if there is one."""
    fitting = [one for one in among if one.variant == "CLIP" and one.size == series.size and one != series]
    if series.variant == "CLIP" or not fitting:
        return None
    return next((one for one in fitting if one.init == series.init), fitting[0])


def _mean(bounds: Sequence[float | None]) -> float | None:
    known = [bound for bound in bounds if bound is not None]
    return statistics.fmean(known) if len(known) == len(bounds) else None


def _with_averages(records: Sequence[Record]) -> list[tuple[Record, tuple[Part, ...]]]:
    """The records of one owner, and its averages with what they are made of."""
    measured: list[tuple[Record, tuple[Part, ...]]] = [(record, ()) for record in records]
    return measured + [(average.record, average.parts) for average in averages_of(records)]


def _short(weights: str) -> str:
    """The part of a path to weights that tells a reader which they are."""
    parts = [part for part in Path(weights).parts if part not in ("checkpoints", "runs", "/")]
    return "/".join(parts[-2:]) if parts else weights


def _series(sources: dict[str, _Source]) -> dict[str, Series]:
    """The series of each source, with labels that are as short as they can be without being ambiguous."""
    sizes = {source.model.removeprefix(variant_of_label(source.model)) for source in sources.values()}
    fresh = [source.init for source in sources.values() if source.init != FINE_TUNED]
    usual = usual_init([init for init in fresh if init]) if fresh else FINE_TUNED

    def label(source: _Source) -> str:
        variant = variant_of_label(source.model)
        model = variant if len(sizes) == 1 and variant != "custom" else source.model
        if source.init in (None, usual):
            return model
        return f"{model} ({source.init if source.init == FINE_TUNED else f'{source.init} init'})"

    labels = {key: label(source) for key, source in sources.items()}
    trained = Counter((labels[key], source.seed) for key, source in sources.items())
    for key, source in sources.items():
        if trained[labels[key], source.seed] > 1:
            labels[key] = f"{labels[key]} · {source.name}"
    # two folders may end alike, too
    seen: Counter[tuple[str, int | None]] = Counter()
    for key, source in sources.items():
        seen[labels[key], source.seed] += 1
        if seen[labels[key], source.seed] > 1:
            labels[key] = f"{labels[key]} ({seen[labels[key], source.seed]})"
    return {
        key: Series(labels[key], source.model, variant_of_label(source.model), source.init)
        for key, source in sources.items()
    }

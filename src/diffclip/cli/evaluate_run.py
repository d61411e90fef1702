"""Carrying out what `diffclip evaluate` was asked for, and telling how it goes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from diffclip.cli.evaluate_table import show_results
from diffclip.cli.progress import showing_progress
from diffclip.cli.skipped import say_skipped
from diffclip.data.evaluation_sets import says_empty_classes
from diffclip.data.masks import says_left_out
from diffclip.errors import DiffCLIPError, InputError
from diffclip.evaluation.focus import texts_of
from diffclip.evaluation.ledger import Ledger, is_file
from diffclip.evaluation.outcomes import beside
from diffclip.evaluation.protocol import draw_of
from diffclip.evaluation.records import Record, to_lines
from diffclip.evaluation.runner import Measured, Runner, Sets
from diffclip.evaluation.store import Store
from diffclip.evaluation.suite import Entry
from diffclip.evaluation.tasks import SOLVED_BY, TASKS
from diffclip.model_source import RANDOM, Loaded, find_model, load_for_use

if TYPE_CHECKING:
    import torch

    from diffclip.data.samples import Fault
    from diffclip.evaluation.embed import Progress


@dataclass(frozen=True)
class Request:
    """The command line of `diffclip evaluate`, checked and resolved."""

    models: Sequence[str]
    watch: Path | None
    entries: tuple[Entry, ...]
    suite: str | None
    root: Path | None
    skip_missing: bool
    draws: Sequence[int]
    probe: str
    prompt: str | None
    output: Path | None
    json_lines: bool
    model_name: str | None
    image_size: int | None
    batch_size: int
    workers: int
    device: torch.device


@dataclass
class _Done:
    """What came of all models: results in order, failures (a line each, and whether one is ours), and faults."""

    results: list[tuple[str, str, Measured]] = field(default_factory=list)
    failures: list[tuple[str, bool]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def carry_out(request: Request) -> None:
    """Measure, write and show.

    Raises:
        InputError: sets are missing, or a task failed for bad input (after all others were done and written).
        DiffCLIPError: a task failed for another reason.
    """
    sets = Sets(request.root)
    entries = request.entries
    if request.suite is not None:
        entries = _present(request)
    else:
        sets.open(entries[0])  # a wrong set is told before any model is loaded
    output = request.output
    # what goes into a pipe cannot be gone on with
    store = Store(beside(output, ".parts")) if request.suite and output and is_file(output) else None
    runner = Runner(
        sets, request.draws, store, request.batch_size, request.workers, request.probe, request.prompt
    )
    ledger = Ledger(output, _expected(request, entries), _kept(request))
    done = _Done()
    for source in _sources(request):
        try:
            loaded = load_for_use(source, request.model_name, request.image_size)
        except InputError as error:
            if request.watch is not None and not Path(source).exists():
                print(f"diffclip: {Path(source).name} was replaced before it could be read", file=sys.stderr)
                continue
            if len(request.models) == 1:
                raise
            print(f"{source}: FAILED: {error}", file=sys.stderr, flush=True)
            done.failures.append((str(error), False))
            continue
        loaded.model.to(request.device)
        name = loaded.label if len(request.models) == 1 else Path(source).name if request.watch else source
        _measure(request, runner, loaded, name, entries, ledger, done)
    if done.results or (output and not is_file(output)):
        ledger.write()
    _show(request, ledger, done)
    if done.failures:
        kind = DiffCLIPError if any(ours for _, ours in done.failures) else InputError
        if request.suite is None and request.watch is None and len(done.failures) == 1:
            raise kind(done.failures[0][0])
        kept = f"; the other results are in {output}" if done.results and output else ""
        tasks = len(done.failures) + len(done.results)
        raise kind(f"{len(done.failures)} of {tasks} tasks failed, see above{kept}")


def _measure(
    request: Request,
    runner: Runner,
    subject: Loaded,
    name: str,
    entries: Sequence[Entry],
    ledger: Ledger,
    done: _Done,
) -> None:
    """One model, called `name` on stderr, through all entries; results go to `ledger` and `done`."""
    with ExitStack() as shown:

        def progress(entry: Entry, pictures: int) -> Progress:
            shown.close()
            return shown.enter_context(showing_progress(f"{name}: {entry}", {"pictures": pictures}))

        for measured in runner.run(subject, entries, progress):
            shown.close()
            if measured.result is None:
                done.failures.append((measured.failure, measured.ours))
            else:
                done.results.append((subject.label, subject.weights, measured))
                done.faults += [fault for fault in measured.faults if fault not in done.faults]
                ledger.add(measured.result, subject.label, subject.weights, subject.seed)
                # each new result is safe at once; those found again are safe already
                if request.output and is_file(request.output) and not measured.reused:
                    ledger.write()
            if request.suite or request.watch:
                print(f"{name}: {_told(measured)}", file=sys.stderr, flush=True)


def _told(measured: Measured) -> str:
    """One entry in a line."""
    if measured.result is None:
        return f"{measured.entry} FAILED: {measured.failure}"
    score = measured.result.scores[0]
    interval = f"[{100 * score.low:.1f}, {100 * score.high:.1f}]"
    how = "found again" if measured.reused else f"{measured.seconds:.1f} s"
    split = f", {measured.result.split} split" if measured.result.split != "test" else ""
    draw = f", draw {measured.draw}" if measured.draw else ""
    return f"{measured.entry}{split}{draw}: {score.metric} {100 * score.value:.1f} % {interval} ({how})"


def _present(request: Request) -> tuple[Entry, ...]:
    """The entries of a suite whose sets are there; the others are told with size and command.

    Raises:
        InputError: some are missing and may not be left out, or all are.
    """
    from diffclip.evaluation.missing import missing_of

    missing = missing_of(request.entries, request.root)
    if not missing:
        return request.entries
    for one in missing.values():
        print(f"diffclip: missing {one.name}, {one.size} to download: {one.command}", file=sys.stderr)
    sets = len({entry.dataset for entry in request.entries})
    left = tuple(entry for entry in request.entries if entry.dataset not in missing)
    if not left or not request.skip_missing:
        where = f"in {request.root}" if request.root else "without --data-root FOLDER"
        way = ", or add --skip-missing to go on without" if left else ""
        raise InputError(
            f"{len(missing)} of the {sets} sets of the suite {request.suite} missing {where}: "
            f"get what is named above{way}"
        )
    return left


def _sources(request: Request) -> Iterator[str]:
    """What to load: the models, or the checkpoints of the watched run."""
    if request.watch is None:
        yield from request.models
        return
    from diffclip.training.checkpoint import checkpoints_of

    run, told = request.watch, False

    def waiting() -> None:
        nonlocal told
        if not told:
            print(
                f"diffclip: waiting for checkpoints of {run}; Ctrl-C ends this", file=sys.stderr, flush=True
            )
        told = True

    for folder in checkpoints_of(run, waiting):
        yield str(folder)


def _expected(request: Request, entries: Sequence[Entry]) -> Callable[[Record], bool]:
    """Which records of an existing file this call makes again."""
    names = [find_model(model) or RANDOM for model in request.models]
    makers = set(zip(names, request.models, strict=True))
    made = {
        (entry.task or record_task, entry.dataset_in_records, split)
        for entry in entries
        for split in entry.splits
        for record_task in ((entry.task,) if entry.task else TASKS)
    }

    def expected(record: Record) -> bool:
        whose = any(
            record.weights == weights and (weights != RANDOM or record.model == model)
            for weights, model in makers
        )
        drawn_again = draw_of(record.protocol) in (None, *request.draws)
        solved_again = record.task != "linear-probe" or SOLVED_BY[request.probe] in record.protocol
        asked_again = record.task != "focus" or f"; {texts_of(request.prompt)}; " in record.protocol
        size = f"centre crop {request.image_size} px"
        seen_again = request.image_size is None or size in record.protocol
        same = (record.task, record.dataset, record.split) in made
        return whose and same and drawn_again and solved_again and asked_again and seen_again

    return expected


def _kept(request: Request) -> Callable[[Record], bool]:
    """A watched run's file keeps the results of checkpoints that are gone."""
    folder = None if request.watch is None else request.watch / "checkpoints"

    def kept(record: Record) -> bool:
        return folder is not None and Path(record.weights).parent == folder

    return kept


def _show(request: Request, ledger: Ledger, done: _Done) -> None:
    if request.json_lines:
        print(to_lines(ledger.records), end="")
    elif request.suite is None and request.watch is None and len(request.draws) == 1:
        if done.results:
            show_results([(label, weights, one.result) for label, weights, one in done.results if one.result])
    elif done.results:
        from diffclip.cli.evaluate_summary import show_summary

        show_summary(ledger)
    broken = [fault for fault in done.faults if not says_empty_classes(fault) and not says_left_out(fault)]
    say_skipped(f"{len(broken)} broken samples or shards", broken)
    left_out = [fault for fault in done.faults if says_left_out(fault)]
    say_skipped(f"{len(left_out)} masks that tell nothing", left_out)
    for fault in done.faults:
        if says_empty_classes(fault):
            print(f"diffclip: {fault}", file=sys.stderr)

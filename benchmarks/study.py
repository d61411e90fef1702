"""The studies for a GPU on a machine that keeps nothing: a part of them, packed to go on from.

    python -m benchmarks.study --data ../shared/data --output part-1 [--done part-0] [--minutes 9]

What earlier parts have finished is unpacked from DONE/study.tgz. Each study goes on, as `diffclip study` does it:
first every study up to its models, then their ablations, until the minutes are over. OUTPUT/study.tgz holds everything
that is finished then, in folders as they are committed under benchmarks/results/; it is packed every half minute, so
that a part that is cut off is not lost. OUTPUT/study.log tells how it went.

A change (`--set`) is `STUDY:KEY=VALUE`, or `KEY=VALUE` for every study that has such a key.

It needs Python 3.11 and, installed or unpacked in a folder that PYTHONPATH names: torch, torchvision, timm,
open_clip_torch, ftfy, regex, numpy, pillow, pydantic, pyyaml, safetensors, huggingface_hub, braceexpand, fsspec, rich,
lightning, tensorboard, scikit-learn and threadpoolctl, with what these need themselves.

On a GPU fused attention is tried first, in a few seconds. Where it is wrong or fails, a loud line says so, and torch's
own takes its place (`--attention` decides it instead).
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.study_start import changes_of, keep_caches, missing_packages, working_folder

if TYPE_CHECKING:
    from diffclip.study.plan import Group
    from diffclip.study.recipe import Study

PACK, LOG = "study.tgz", "study.log"
STUDIES = ("study_gpu", "study_scenes_gpu")
_PACK_EVERY = 30.0  # seconds
_WORTHWHILE = 120.0  # seconds, in which a study can begin, and end something
_ENDING = 15.0  # seconds to stop, save and pack in
_TRYING = 100.0  # seconds in which fused attention is compiled and tried


class Part:
    """One part: where it works, what it packs, and what it tells."""

    def __init__(self, output: Path, work: Path, seconds: float) -> None:
        self.output, self.work = output, work
        self._deadline = time.monotonic() + seconds
        self._packed = time.monotonic()

    @property
    def seconds_left(self) -> float:
        """Until everything has to stop, so that it is packed in time."""
        return self._deadline - _ENDING - time.monotonic()

    def results(self, name: str) -> Path:
        """The folder of a study."""
        return self.work / "results" / name

    def unpack(self, done: Path | None) -> None:
        """What earlier parts have finished.

        Raises:
            InputError: there is no such pack, or it is damaged.
        """
        from diffclip.errors import InputError

        if done is None:
            return
        try:
            with tarfile.open(done / PACK) as tar:
                tar.extractall(self.work / "results", filter="data")
        except (OSError, EOFError, tarfile.TarError) as error:
            why = " ".join(str(error).split())
            raise InputError(
                f"{done / PACK} cannot be unpacked ({why}): give another --done, or none"
            ) from None

    def pack(self, at_once: bool = False) -> None:
        """Everything that is finished into the output folder, whole, but not more than twice a minute."""
        from diffclip.errors import InputError
        from diffclip.files import write_atomically

        if not at_once and time.monotonic() < self._packed + _PACK_EVERY:
            return
        try:
            with (
                write_atomically(self.output / PACK) as temporary,
                tarfile.open(temporary, "w:gz", compresslevel=6) as tar,
            ):
                for file in self._finished():
                    tar.add(file, file.relative_to(self.work / "results"))
        except InputError as error:
            if at_once:
                raise
            self.say(f"not packed, to be tried again: {error}")
        self._packed = time.monotonic()

    def _finished(self) -> Iterator[Path]:
        """The files of each study and of its finished runs; what is being written beside them comes and goes."""
        from diffclip.study.folder import COST_FILE, STUDY_FILE
        from diffclip.study.timing import TIMING_FILE

        for study in sorted((self.work / "results").glob(f"*/{STUDY_FILE}")):
            yield from filter(Path.is_file, (study, study.with_name(TIMING_FILE)))
            for cost in sorted(study.parent.glob(f"*/[!.]*/{COST_FILE}")):
                yield from sorted(cost.parent.iterdir())

    def say(self, line: str) -> None:
        """A line on stdout and in the log."""
        print(line, flush=True)
        with (self.output / LOG).open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")


def go_on(
    part: Part,
    name: str,
    study: Study,
    until: Group | None,
    options: argparse.Namespace,
    attention: str | None,
) -> int:
    """Go on with a study; 0, or the exit code for what went wrong, or stopped it before its time."""
    from diffclip.report.save import save_run
    from diffclip.study.grid import run_study, usual_workers
    from diffclip.study.one import Place
    from diffclip.study.ready import problems_of

    device, number = options.device, options.workers or usual_workers(options.device)
    runs = part.work / "runs" / name
    place = Place(
        options.data, runs, part.results(name), device, number, save_run, attention_backend=attention
    )
    problems = problems_of(study, place)
    for problem in problems:
        part.say(f"{name}: {problem}")
    if problems:
        part.say(f"{name}: a change to it alone is --set {name}:KEY=VALUE")
        return 2
    started = time.monotonic()
    tally = run_study(study, place, part.say, until=until, seconds=part.seconds_left, finished=part.pack)
    part.pack(at_once=True)
    part.say(
        f"{name}: {tally.done} of {tally.total} runs done, {len(tally.failures)} failed, "
        f"{time.monotonic() - started:.0f} s with {number} at a time"
    )
    if isinstance(tally.stopped, int):
        return 130 if tally.stopped == signal.SIGINT else 75
    return 1 if tally.failures else 0


def choose_attention(part: Part, studies: Sequence[Study], options: argparse.Namespace) -> str | None:
    """What attention is computed by: what was asked for, or on a GPU what proves right; None: what the study says."""
    from diffclip.study.kernels import FALLBACK, fault_of_kernels

    if options.attention or options.device == "cpu":
        return str(options.attention) if options.attention else None
    started = time.monotonic()
    for study in studies:
        fault = fault_of_kernels(study, options.device, _TRYING)
        if fault is not None:
            part.say(
                f"!!! FUSED ATTENTION IS NOT USED, torch's own ({FALLBACK}) takes its place: {fault} !!!"
            )
            return FALLBACK
    part.say(f"fused attention holds, tried in {time.monotonic() - started:.0f} s")
    return None


def do_part(part: Part, options: argparse.Namespace) -> int:
    """All studies as far as the time goes; the first exit code that is not 0."""
    from diffclip.model_source import pick_device
    from diffclip.study.recipe import read_study

    pick_device(options.device)
    sources = {Path(source).stem: source for source in options.studies}
    changes = changes_of({name: read_study(source) for name, source in sources.items()}, options.set)
    studies = {name: read_study(source, changes[name]) for name, source in sources.items()}
    part.unpack(options.done)
    attention = choose_attention(part, list(studies.values()), options)
    codes: dict[str, int] = {}
    first_call = True
    for until in ("models", None):
        for name, study in studies.items():
            if codes.get(name) or not (first_call or part.seconds_left > _WORTHWHILE):
                continue
            first_call = False
            codes[name] = go_on(part, name, study, until, options, attention)
            if codes[name] in (75, 130):
                return codes[name]
    part.pack(at_once=True)
    return next((code for code in codes.values() if code), 0)


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", nargs="+", default=STUDIES, help="in this order")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--done", type=Path, help="the output of the part before")
    parser.add_argument("--minutes", type=float, default=9.0, help="in all, with the start and the end")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--workers", type=int, help="runs at a time")
    parser.add_argument(
        "--attention", choices=("auto", "sdpa", "triton", "eager"), help="default: auto, if that proves right"
    )
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="[STUDY:]KEY=VALUE", help="changes to the studies"
    )
    options = parser.parse_args(words)
    if not options.minutes > 0:
        parser.error(f"--minutes {options.minutes:g} is no time")
    if options.workers is not None and options.workers < 1:
        parser.error(f"--workers {options.workers}: at least 1 run has to go")
    return options


def main() -> None:
    started = time.monotonic()
    options = parsed()
    missing = missing_packages()
    if missing:
        print(
            f"study: {', '.join(missing)} cannot be found: install them, or unpack their wheels into a folder that "
            "PYTHONPATH names",
            file=sys.stderr,
        )
        sys.exit(2)
    work = working_folder()
    keep_caches(work)
    from diffclip.errors import DiffCLIPError
    from diffclip.files import disk_errors

    try:
        with disk_errors(options.output):
            options.output.mkdir(parents=True, exist_ok=True)
        code = do_part(
            Part(options.output, work, 60 * options.minutes - (time.monotonic() - started)), options
        )
    except DiffCLIPError as error:
        print(f"study: {error}", file=sys.stderr)
        code = error.exit_code
    except KeyboardInterrupt:
        code = 130
    finally:
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(code)


if __name__ == "__main__":
    main()

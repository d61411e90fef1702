"""The studies for a GPU on a machine that is lent for minutes and keeps nothing: a part of them, packed to go on from.

    python -m benchmarks.study --data ../shared/data --output part-1 [--done part-0] [--minutes 9]

What earlier parts have finished is unpacked from DONE/study.tgz. One study after the other goes on, as `diffclip study`
does it, until the minutes are over. OUTPUT/study.tgz holds everything that is finished then, in folders as they are
committed under benchmarks/results/; it is packed every half minute, so that a part that is cut off is not lost.
OUTPUT/study.log tells how it went.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

PACK, LOG = "study.tgz", "study.log"
STUDIES = ("study_gpu", "study_scenes_gpu")
_PACK_EVERY = 30.0  # seconds
_WORTHWHILE = 90.0  # seconds, in which a study can begin, and end something


class Part:
    """One part: where it works, what it packs, and what it tells."""

    def __init__(self, output: Path, work: Path, seconds: float) -> None:
        self.output, self.work = output, work
        self._deadline = time.monotonic() + seconds
        self._packed = time.monotonic()

    @property
    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def results(self, name: str) -> Path:
        """The folder of a study."""
        return self.work / "results" / name

    def unpack(self, done: Path | None) -> None:
        """What earlier parts have finished."""
        if done is not None and (done / PACK).is_file():
            with tarfile.open(done / PACK) as tar:
                tar.extractall(self.work / "results", filter="data")

    def pack(self, at_once: bool = False) -> None:
        """Everything that is finished into the output folder, whole, but not more than twice a minute."""
        from diffclip.files import write_atomically

        if not at_once and time.monotonic() < self._packed + _PACK_EVERY:
            return
        with (
            write_atomically(self.output / PACK) as temporary,
            tarfile.open(temporary, "w:gz") as tar,
        ):
            for folder in sorted((self.work / "results").glob("*")):
                tar.add(folder, folder.name, filter=_whole)
        self._packed = time.monotonic()

    def say(self, line: str) -> None:
        """A line on stdout and in the log."""
        print(line, flush=True)
        with (self.output / LOG).open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")


def _whole(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leaves out what is being written."""
    return None if any(part.endswith(".tmp") for part in Path(member.name).parts) else member


def go_on(
    part: Part, source: str, data: Path, device: str, workers: int | None, changes: Sequence[str]
) -> bool:
    """Go on with a study, a file or a name; whether nothing failed."""
    from diffclip.report.save import save_run
    from diffclip.study.grid import run_study, usual_workers
    from diffclip.study.one import Place
    from diffclip.study.ready import problems_of
    from diffclip.study.recipe import read_study

    study, name = read_study(source, changes), Path(source).stem
    number = workers or usual_workers(device)
    place = Place(data, part.work / "runs" / name, part.results(name), device, number, save_run)
    problems = problems_of(study, place)
    for problem in problems:
        part.say(f"{name}: {problem}")
    if problems:
        return False
    started = time.monotonic()
    tally = run_study(study, place, part.say, seconds=part.seconds_left, finished=part.pack)
    part.pack(at_once=True)
    part.say(
        f"{name}: {tally.done} of {tally.total} runs done, {len(tally.failures)} failed, "
        f"{time.monotonic() - started:.0f} s with {number} at a time"
    )
    return not tally.failures and tally.stopped in (None, "time")


def main() -> None:
    started = time.monotonic()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", nargs="+", default=STUDIES, help="in this order")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--done", type=Path, help="the output of the part before")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--workers", type=int, help="runs at a time")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes to the studies")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    from diffclip.errors import DiffCLIPError

    work = Path(tempfile.mkdtemp(prefix="study-"))
    try:
        part = Part(options.output, work, 60 * options.minutes - (time.monotonic() - started))
        part.unpack(options.done)
        well = True
        for number, name in enumerate(options.studies):
            if not number or part.seconds_left > _WORTHWHILE:
                well &= go_on(part, name, options.data, options.device, options.workers, options.set)
        part.pack(at_once=True)
    except DiffCLIPError as error:
        sys.exit(f"study: {error}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()

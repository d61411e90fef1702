"""img2dataset as the tool of its own that it is: found, started with the paper's settings, watched, ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from diffclip.data.caption_list import CaptionList
from diffclip.data.caption_sets import EDGE, QUALITY
from diffclip.data.fetch_file import Advance
from diffclip.errors import DiffCLIPError, InputError, StoppedError

_TOOL = "img2dataset"
# programs that run a tool from an environment of its own, made when it is first needed
_RUNNERS = (("uvx", [_TOOL]), ("pipx", ["run", _TOOL]))
# a shard in progress is given up; the tool only has to end its processes
_GRACE = 20.0
_POLL = 0.5
_STATS = "_stats.json"


@dataclass
class Outcome:
    """What has come of a list, from what img2dataset wrote beside each shard.

    `reasons` are those of the failures, in img2dataset's words, with their counts.
    """

    shards: int = 0
    pairs: int = 0
    pictures: int = 0
    not_fetched: int = 0
    not_read: int = 0
    size: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


def find_tool(given: Path | None = None) -> list[str]:
    """The words that start img2dataset: the program `given`, that on PATH, or one that uvx or pipx run.

    Raises:
        InputError: there is none of these.
    """
    if given is not None:
        found = shutil.which(str(given.expanduser()))
        if found is None:
            raise InputError(
                f"{given} is no program: give the path of img2dataset, or leave --img2dataset out"
            )
        return [found]
    found = shutil.which(_TOOL)
    if found is not None:
        return [found]
    for runner, words in _RUNNERS:
        found = shutil.which(runner)
        if found is not None:
            return [found, *words]
    raise InputError(
        "img2dataset, which fetches the pictures, is not installed: run pipx install img2dataset"
    )


def command_of(
    tool: Sequence[str], source: CaptionList, shards: Path, processes: int, threads: int
) -> list[str]:
    """The command line that fetches `source` into the folder `shards`, with the settings of the paper's authors."""
    url, caption = source.columns
    options: dict[str, object] = {
        "url_list": source.path,
        "input_format": source.kind,
        "url_col": url,
        "caption_col": caption,
        "output_folder": shards,
        "output_format": "webdataset",
        "image_size": EDGE,
        "resize_mode": "keep_ratio",
        "resize_only_if_bigger": True,
        "encode_format": "jpg",
        "encode_quality": QUALITY,
        "extract_exif": False,
        "processes_count": processes,
        "thread_count": threads,
        "incremental_mode": "incremental",
        "enable_wandb": False,
    }
    return [*tool, *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


def run_tool(command: Sequence[str], shards: Path, log: Path, advance: Advance | None = None) -> None:
    """Run img2dataset to its end; its words go to the end of `log`.

    Shards that are not finished are removed, as the next run makes them anew; so are, before it starts, the notes on
    shards of which not one picture came, so that it tries these again.

    Args:
        command: what `command_of` gives.
        shards: the folder that it fills.
        log: a file.
        advance: called with "pairs", how many more are done, and None.

    Raises:
        DiffCLIPError: the tool failed.
        KeyboardInterrupt: SIGINT, after the tool has ended.
        StoppedError: SIGTERM, after the tool has ended.
    """
    shards.mkdir(parents=True, exist_ok=True)
    for stats, content in _notes(shards):
        if not content["successes"]:
            stats.unlink()
    _drop_unfinished(shards)
    seen = {stats.name for stats, _ in _notes(shards)}
    with log.open("ab") as words, _signals() as asked:
        # out of reach of the terminal's Ctrl-C: its workers would each complain
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"NO_ALBUMENTATIONS_UPDATE": "1"},
        )
        try:
            while process.poll() is None and not asked:
                _tell_new(shards, seen, advance)
                time.sleep(_POLL)
        finally:
            _end(process)
            _drop_unfinished(shards)
        _tell_new(shards, seen, advance)
    if asked:
        if asked[0] == signal.SIGINT:
            raise KeyboardInterrupt
        raise StoppedError(f"stopped by SIGTERM; what is in {shards} is kept: the same command goes on")
    if process.returncode:
        raise DiffCLIPError(f"img2dataset {_ending(process.returncode)}{_last_words(log)}; its log is {log}")


def outcome_of(shards: Path) -> Outcome:
    """What has come so far into the folder `shards`, which need not be there yet."""
    outcome = Outcome()
    for stats, content in _notes(shards):
        outcome.shards += 1
        outcome.pairs += content["count"]
        outcome.pictures += content["successes"]
        outcome.not_fetched += content["failed_to_download"]
        outcome.not_read += content["failed_to_resize"]
        outcome.reasons.update(content["status_dict"])
        tar = stats.with_name(stats.name.removesuffix(_STATS) + ".tar")
        outcome.size += tar.stat().st_size if tar.exists() else 0
    del outcome.reasons["success"]
    return outcome


def _notes(shards: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """What img2dataset wrote about each finished shard; a note that cannot be read counts as none."""
    for stats in sorted(shards.glob(f"*{_STATS}")):
        content = _read(stats)
        if content is not None:
            yield stats, content


def _read(stats: Path) -> dict[str, Any] | None:
    names = ("count", "successes", "failed_to_download", "failed_to_resize", "status_dict")
    try:
        content = json.loads(stats.read_text(encoding="utf-8"))
        return content if all(name in content for name in names) else None
    except (OSError, ValueError, TypeError):
        return None


def _drop_unfinished(shards: Path) -> None:
    """Remove shards without a note, and the copy of the list that a tool that was killed has left."""
    for tar in shards.glob("*.tar"):
        if _read(tar.with_name(tar.stem + _STATS)) is None:
            for ending in (".tar", ".parquet", _STATS):
                tar.with_name(tar.stem + ending).unlink(missing_ok=True)
    shutil.rmtree(shards / "_tmp", ignore_errors=True)


def _tell_new(shards: Path, seen: set[str], advance: Advance | None) -> None:
    if advance is None:
        return
    for stats in shards.glob(f"*{_STATS}"):
        content = None if stats.name in seen else _read(stats)
        if content is not None:
            seen.add(stats.name)
            advance("pairs", content["count"], None)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """A list that holds what was asked: SIGINT or SIGTERM, instead of what they do otherwise.

    Outside the main thread, where Python handles no signals, it stays empty.
    """
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM) if main}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the tool as Ctrl-C would, and its whole group if that is of no use."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
    # workers may outlive it
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ending(code: int) -> str:
    if code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"failed with exit code {code}"


def _last_words(log: Path) -> str:
    """The last line of the log, which of a Python program says what was wrong."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2000))
        lines = file.read().decode("utf-8", "replace").split("\n")
    words = next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")
    return f" ({words[:200]})" if words else ""

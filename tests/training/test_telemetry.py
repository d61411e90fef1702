"""What a run tells; and where it cannot be written, one line, which closing does not replace by another."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from diffclip import InputError
from diffclip.training.about import add_start, read_starts
from diffclip.training.telemetry import Silent, Telemetry


def record(step: int) -> dict[str, Any]:
    numbers = ("epoch", "samples", "loss", "accuracy", "samples_per_second", "data_wait")
    return {"step": step} | dict.fromkeys(numbers, 0.5) | {"lambda": {"visual": [0.8], "text": []}}


VALIDATION = {
    "step": 1,
    "epoch": 1,
    "image_retrieval_recall@5": 0.5,
    "text_retrieval_recall@5": 0.5,
    "score": 0.5,
}


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Within the block, this process cannot write a file beyond `size` bytes."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A run whose `metrics.jsonl` is a device that is always full."""
    if not Path("/dev/full").exists():
        pytest.skip("needs a device that is always full")
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    return tmp_path


def test_a_full_disk_is_one_line_of_ours(full: Path) -> None:
    with (
        pytest.raises(InputError, match=r"no space left on device while writing .*metrics\.jsonl: free"),
        Telemetry(full, "test", 5) as telemetry,
    ):
        telemetry.step(record(1))


def test_what_stopped_the_run_is_not_replaced(full: Path) -> None:
    class StoppedError(Exception):
        pass

    with pytest.raises(StoppedError), Telemetry(full, "test", 5) as telemetry:
        with pytest.raises(InputError):
            telemetry.step(record(1))
        raise StoppedError


def test_what_only_closing_finds_is_raised(full: Path) -> None:
    telemetry = Telemetry(full, "test", 5).__enter__()
    with pytest.raises(InputError):
        telemetry.step(record(1))
    with pytest.raises(InputError, match=r"metrics\.jsonl"):
        telemetry.__exit__(None, None, None)


def test_tensorboard_that_cannot_be_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/null")
    with (
        pytest.raises(InputError, match=r"cannot write .*tensorboard: File too large; choose another place"),
        files_no_larger_than(1000),
        Telemetry(tmp_path, "test", 10_000) as telemetry,
    ):
        for step in range(1, 10_000):
            telemetry.step(record(step))
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["metrics.jsonl", "validation.jsonl"])
def test_a_folder_in_the_place_of_a_file(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=f"cannot write .*{name}: a file or folder of that name"):
        Telemetry(tmp_path, "test", 5)


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").touch()
    with pytest.raises(InputError, match=r"cannot write .*tensorboard: a file or folder of that name"):
        Telemetry(tmp_path, "test", 5)


def test_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    with Telemetry(tmp_path, "test", 5) as telemetry:
        for step in (1, 2, 3):
            telemetry.step(record(step))
        telemetry.validation(VALIDATION)
        telemetry.validation(VALIDATION | {"step": 3})
    with Telemetry(tmp_path, "test", 5, done=2) as telemetry:
        telemetry.step(record(3))
    for name, steps in (("metrics.jsonl", [1, 2, 3]), ("validation.jsonl", [1])):
        assert [json.loads(line)["step"] for line in (tmp_path / name).read_text().splitlines()] == steps


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_each_record_tells_when_it_was_and_how_long_is_left(tmp_path: Path) -> None:
    before = time.time()
    with Telemetry(tmp_path, "test", 5) as telemetry:
        for step in range(1, 6):
            telemetry.step(record(step) | {"samples": 8 * step})
    found = lines(tmp_path)
    assert [line["seconds_left"] is None for line in found] == [True, False, False, False, False]
    assert found[-1]["seconds_left"] == 0
    times = [line["time"] for line in found]
    assert times == sorted(times)
    assert before - 0.001 <= times[0] <= time.time()
    assert found[2].items() >= (record(3) | {"samples": 24}).items()


def test_a_line_tells_the_rate_the_waiting_and_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Telemetry(tmp_path, "a [b] run", 3) as telemetry:
        for step in (1, 2, 3):
            with telemetry.pause("checkpoint"):
                pass
            telemetry.step(record(step) | {"samples": 8 * step, "data_wait": 0.25})
        telemetry.say("a word")
    error = capsys.readouterr().err
    assert "a [b] run: step 3/3  loss 0.500  accuracy 50%  " in error
    assert " samples/s  data wait 25%  0 s left, ends " in error
    assert "a [b] run: a word\n" in error


def test_tensorboard_has_every_number_and_lambda_every_tenth_step(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with Telemetry(tmp_path, "test", 25, 3) as telemetry:
        for step in range(4, 26):
            telemetry.step(record(step) | {"loss": math.nan if step == 7 else step / 2})
        correlation = {"visual": [0.25, -0.5], "text": []}
        telemetry.validation(VALIDATION | {"step": 25, "map_correlation": correlation})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    losses = {event.step: event.value for event in events.Scalars("train/loss")}
    assert list(losses) == list(range(4, 26))
    assert math.isnan(losses.pop(7))
    assert all(value == step / 2 for step, value in losses.items())
    assert [event.step for event in events.Scalars("lambda/visual/0")] == [4, 10, 20, 25]
    assert [event.value for event in events.Scalars("validation/score")] == [0.5]
    assert [event.value for event in events.Scalars("map_correlation/visual/1")] == [-0.5]
    assert not {"train/time", "train/step", "validation/epoch"} & set(events.Tags()["scalars"])


def test_how_a_start_ended_is_kept_where_there_are_facts_of_it(tmp_path: Path) -> None:
    with Telemetry(tmp_path, "test", 2) as telemetry:
        telemetry.step(record(1))
    assert not (tmp_path / "about.json").exists()
    for error in (KeyboardInterrupt(), OSError("gone"), InputError("no  space\nleft"), None):
        add_start(tmp_path, {"step": 0})
        try:
            with Telemetry(tmp_path, "test", 2, about={"step": 0}) as telemetry:
                telemetry.step(record(1))
                if error:
                    raise error
        except (KeyboardInterrupt, OSError, InputError):
            pass
    add_start(tmp_path, {"step": 1})
    with Telemetry(tmp_path, "test", 2, 1, about={"step": 1}) as telemetry:
        telemetry.step(record(2))
    ends = [(start["ended"]["how"], start["ended"]["step"]) for start in read_starts(tmp_path)]
    assert ends == [
        ("KeyboardInterrupt", 1),
        ("OSError: gone", 1),
        ("no space left", 1),
        ("stopped", 1),
        ("finished", 2),
    ]


def test_the_silent_twin_has_the_same_methods_and_does_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    public = {name for name in vars(Telemetry) if not name.startswith("_")}
    assert public == {name for name in vars(Silent) if not name.startswith("_")}
    with Silent() as telemetry:
        telemetry.step(record(1))
        telemetry.validation(VALIDATION)
        telemetry.say("x")
        with telemetry.pause("validation"):
            pass
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


BAR = """
import sys
import time
from pathlib import Path
from diffclip.training.telemetry import Telemetry
numbers = dict.fromkeys(("epoch", "loss", "accuracy", "samples_per_second", "data_wait"), 0.5)
with Telemetry(Path(sys.argv[1]), "DiffCLIP-dynamic-ViT-B-16 seed 0", 90_000, 80_000) as telemetry:
    for step in range(80_001, 80_010):
        time.sleep(0.01)  # else the rate has too many digits
        telemetry.step(numbers | {"step": step, "samples": 8 * step})
    with telemetry.pause("validation"):
        telemetry._bar.refresh()
"""


def test_on_a_terminal_of_80_columns_nothing_of_the_bar_is_cut_off(tmp_path: Path) -> None:
    ours, theirs = pytest.importorskip("pty").openpty()
    environment = os.environ | {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    program = subprocess.Popen(
        [sys.executable, "-c", BAR, str(tmp_path)], stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert program.wait() == 0
    text = shown.decode()
    assert "DiffCLIP-dynamic-ViT-B-16 seed 0" in text
    assert "80009/90000" in text
    assert "left, ends" in text
    assert "data wait 50%  (validation)" in text
    assert "…" not in text

"""The log of a run: full disks, other loggers, and the record of each start."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_recipe import changed

from diffclip import InputError
from diffclip.training.about import describe_start
from diffclip.training.logging import RunLogger, duration, logger_makers, register_logger
from diffclip.training.run_folder import add_start, read_lines, read_starts


def record(step: int) -> dict[str, Any]:
    numbers = dict.fromkeys(("epoch", "loss", "accuracy", "samples_per_second", "data_wait"), 0.5)
    return {"step": step, "samples": 8 * step, "lambda": {"visual": [0.8], "text": []}, **numbers}


VALIDATION = {
    **{"step": 1, "epoch": 1, "score": 0.5},
    **{"image_retrieval_recall@5": 0.5, "text_retrieval_recall@5": 0.5},
    "map_correlation": {"visual": [0.25], "text": []},
}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_an_input_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    message = r"no space left on device while writing .*metrics\.jsonl: free"
    with pytest.raises(InputError, match=message), RunLogger(tmp_path, "test", 5) as logger:
        logger.step(record(1))


def test_log_lines_show_rate_wait_and_time_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLogger(tmp_path, "a [b] run", 3) as logger:
        for step in (1, 2, 3):
            logger.step(record(step) | {"data_wait": 0.25})
        logger.validation(VALIDATION)
    stderr = capsys.readouterr().err
    assert "a [b] run: step 3/3  loss 0.500  accuracy 50%  " in stderr
    assert " samples/s  data wait 25%  0 s left" in stderr
    assert "a [b] run: epoch 1: validation R@5 text→image 50.0%" in stderr
    records = read_lines(tmp_path / "metrics.jsonl")
    assert [line["seconds_left"] is None for line in records] == [True, False, False]
    seconds = (99.4, 100, 3 * 3600 + 290, 26 * 3600, 2.2 * 86400)
    assert [*map(duration, seconds)] == ["99 s", "2 min", "3 h 05 min", "1 d 02 h", "2 d 05 h"]
    assert records[-1]["seconds_left"] == 0


def test_each_start_records_how_it_ended(tmp_path: Path) -> None:
    for error in (KeyboardInterrupt(), OSError("gone"), InputError("no  space\nleft"), None):
        add_start(tmp_path, {"step": 0})
        try:
            with RunLogger(tmp_path, "test", 2) as logger:
                logger.step(record(1))
                if error:
                    raise error
                logger.step(record(2))
        except (KeyboardInterrupt, OSError, InputError):
            pass
    ends = [(start["ended"]["how"], start["ended"]["step"]) for start in read_starts(tmp_path)]
    assert ends == [("KeyboardInterrupt", 1), ("OSError: gone", 1), ("no space left", 1), ("finished", 2)]


def test_offline_weights_and_biases_resumes_the_same_run(recipe, tmp_path: Path, monkeypatch) -> None:
    wandb = pytest.importorskip("wandb")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # Lightning reads the rank when it is imported, maybe in a test that pretends to be another
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    monkeypatch.setattr(rank_zero_only, "rank", 0)
    for done in (0, 2):
        wandb_recipe = changed(recipe, wandb={"project": "a-project", "tags": ["a-tag"]})
        loggers = logger_makers(wandb_recipe, tmp_path, done, {"model": "it"})
        with RunLogger(tmp_path, "test", 20, done, loggers) as logger:
            for step in (done + 1, done + 2):
                logger.step(record(step))
        wandb.teardown()
    files = list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    content = b"".join(file.read_bytes() for file in files)
    assert {file.name for file in files} == {f"run-{(tmp_path / 'wandb' / 'id').read_text()}.wandb"}
    assert all(word in content for word in (b"a-project", b"a-tag", b"train/loss"))


class Full:
    """A logger that keeps its numbers, and whose disk is full from the second step on."""

    def __init__(self) -> None:
        self.numbers: dict[str, float] = {}

    def log_metrics(self, numbers: dict[str, float], step: int) -> None:
        if step > 1:
            raise OSError(28, "No space left on device")
        self.numbers |= numbers

    def finalize(self, status: str) -> None:
        raise AssertionError("a dropped logger is not used again")


def test_unusable_loggers_are_reported_and_skipped(recipe, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    full = Full()
    register_logger("full")(lambda run, config: full)
    loggers = logger_makers(changed(recipe, wandb="a-project", loggers=["full"]), tmp_path, 0, {})
    with RunLogger(tmp_path, "test", 3, 0, loggers) as logger:
        for step in (1, 2, 3):
            logger.validation(VALIDATION | {"step": step})
            logger.step(record(step))
    messages = [line for line in capsys.readouterr().err.splitlines() if line.startswith("diffclip: ")]
    for line, name in zip(messages, ("Weights & Biases", "full"), strict=True):
        assert line.startswith(f"diffclip: {name} cannot be used, the run goes on without it: ")
    assert [line["step"] for line in read_lines(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    expected = {
        "train/loss": 0.5,
        "lambda/visual/0": 0.8,
        "validation/score": 0.5,
        "map_correlation/visual/0": 0.25,
    }
    assert expected.items() <= full.numbers.items()


def test_each_start_records_its_command_and_versions_without_passwords(tmp_path, monkeypatch) -> None:
    (tmp_path / "about.json").write_text('{"starts": [3')  # damaged
    argv = ["/bin/diffclip", "train", "it.yaml", "data.train=https://mé:pa55@host/é/x.tar?sig=pa55"]
    monkeypatch.setattr(sys, "argv", argv)
    add_start(tmp_path, describe_start({"samples": 40}, {"world": 1, "precision": "fp32"}, 5, 15))
    add_start(tmp_path, {"folder": "caf\udce9"})  # a path that is not UTF-8
    start, second = read_starts(tmp_path)
    assert (start["step"], start["steps"]) == (5, 15)
    assert start["command"].startswith("diffclip train it.yaml 'data.train=https://…@host/é/x.tar?…'")
    assert start["processes"] == {"world": 1, "precision": "fp32"}
    assert {"diffclip", "torch", "python", "timm"} <= start["versions"].keys()
    assert second == {"folder": "caf\udce9"}

"""Real processes that index: killed at any moment, two at once."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from diffclip.cli.main import main
from diffclip.model_source import Loaded
from diffclip.search import PictureIndex, Update
from diffclip.search.store import DATABASE

PICTURES = 200
QUERY = "a red square beside a blue one"


def update(folder: Path, loaded: Loaded, place: Path, workers: int = 0) -> None:
    with PictureIndex.open(folder, loaded, place) as index:
        index.update(batch_size=1, workers=workers)
        # which writes FAISS' file
        index.search_text(QUERY, 1)


def start(*arguments: object) -> BaseProcess:
    """`update` in a process of its own; a fork, as a kill ends it like any other, and it starts at once."""
    process = get_context("fork").Process(target=update, args=arguments)
    process.start()
    return process


def indexed(place: Path) -> int:
    """Pictures that an index holds, seen by another process."""
    try:
        with closing(sqlite3.connect(f"file:{place / DATABASE}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM vectors").fetchone()[0])
    except sqlite3.OperationalError:  # none yet
        return 0


def wait_for(place: Path, count: int, runs: Callable[[], bool]) -> None:
    while indexed(place) < count and runs():
        time.sleep(0.001)


def hold(pid: int, place: Path) -> int:
    """Stop a process where it is, which must be in the middle; the pictures that it has indexed."""
    os.kill(pid, signal.SIGSTOP)
    held = indexed(place)
    assert 0 < held < PICTURES
    return held


@pytest.fixture
def many(tmp_path, draw):
    for number in range(PICTURES):
        draw(tmp_path / "many" / f"{number % 7}" / f"{number:03d}.png", number)
    return tmp_path / "many"


@pytest.mark.slow
def test_killed_again_and_again_it_goes_on_and_finds_the_same(many, loaded, tmp_path):
    place, chance = tmp_path / "killed", random.Random(0)
    held = 0
    for kill in range(6):
        process = start(many, loaded, place, kill % 2)
        # with the last two while FAISS' file is written, or a little before or after
        wait_for(place, held + chance.randrange(1, 40) if kill < 4 else PICTURES, process.is_alive)
        time.sleep(chance.random() * 0.01)
        process.kill()
        process.join()
        now = indexed(place)
        assert now >= held
        held = now
    assert held == PICTURES
    with PictureIndex.open(many, loaded, place) as index:
        assert index.update() == Update(0, 0, 0, [], PICTURES)
        found = index.search_text(QUERY, PICTURES)
    with PictureIndex.open(many, loaded, tmp_path / "whole") as undisturbed:
        assert undisturbed.update().added == PICTURES
        hits = undisturbed.search_text(QUERY, PICTURES)
    wanted = {hit.path: pytest.approx(hit.score, abs=1e-5) for hit in hits}
    assert {hit.path: hit.score for hit in found} == wanted
    assert len(found) == PICTURES


@pytest.mark.slow
def test_while_one_updates_another_says_so_and_searches_what_is_there(
    many, model_folder, loaded, tmp_path, monkeypatch, capsys
):
    place = tmp_path / "index"
    words = [
        "diffclip",
        "search",
        many,
        QUERY,
        "--model",
        model_folder,
        "--index",
        place,
        "--top",
        300,
        "--json",
    ]
    monkeypatch.setattr(sys, "argv", list(map(str, words)))
    first = start(many, loaded, place)
    wait_for(place, 5, first.is_alive)
    held = hold(first.pid, place)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        os.kill(first.pid, signal.SIGCONT)
        first.join()
    printed, said = capsys.readouterr()
    assert (ended.value.code, len(printed.splitlines())) == (0, held)
    assert said.startswith(f"diffclip: process {first.pid} on ")
    assert said.endswith(f" updates the index: searching the {held} pictures in it so far\n")
    assert said.count("\n") == 1
    # and it was not in the way of the first
    assert first.exitcode == 0
    assert indexed(place) == PICTURES


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_done(many, model_folder, loaded, tmp_path):
    place = tmp_path / "index"
    words = [sys.executable, "-m", "diffclip.cli", "search", many, QUERY, "--model", model_folder]
    words += ["--index", place, "--batch-size", "1", "--workers", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(place, 10, lambda: process.poll() is None)
        hold(process.pid, place)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        _, said = process.communicate()
    assert (process.returncode, said) == (130, "diffclip: interrupted\n")
    held = indexed(place)
    assert 10 <= held < PICTURES
    with PictureIndex.open(many, loaded, place) as index:
        assert index.update().added == PICTURES - held

"""Real processes that index: killed at any moment, two at once."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diffclip.search import PictureIndex
from diffclip.search.store import DATABASE

PICTURES = 200
QUERY = "a red square beside a blue one"


def start(folder: Path, model: Path, place: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "diffclip.cli", "search", str(folder), QUERY, "--model", str(model)]
    command += ["--index", str(place), "--batch-size", "4", "--top", "300", "--json", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answers(process: subprocess.Popen[str]) -> tuple[dict[str, float], str]:
    """Path → score, and what was said; the process must end well."""
    out, said = process.communicate()
    assert process.returncode == 0, said
    return {hit["path"]: hit["score"] for hit in map(json.loads, out.splitlines())}, said


def indexed(place: Path) -> int:
    """Pictures that an index holds, seen by another process."""
    try:
        with sqlite3.connect(f"file:{place / DATABASE}?mode=ro", uri=True) as connection:
            return int(connection.execute("SELECT count(*) FROM vectors").fetchone()[0])
    except sqlite3.OperationalError:  # none yet
        return 0


def wait_for(process: subprocess.Popen[str], place: Path, count: int) -> None:
    while indexed(place) < count and process.poll() is None:
        time.sleep(0.005)


@pytest.fixture
def many(tmp_path, draw):
    for number in range(PICTURES):
        draw(tmp_path / "many" / f"{number % 7}" / f"{number:03d}.png", number)
    return tmp_path / "many"


@pytest.mark.slow
def test_killed_again_and_again_it_goes_on_and_finds_the_same(many, model_folder, loaded, tmp_path):
    place, chance = tmp_path / "killed", random.Random(0)
    held = 0
    for kill in range(5):
        process = start(many, model_folder, place, "--workers", str(kill % 2))
        # with the last one while FAISS' file is written, or a little before or after
        wait_for(process, place, held + chance.randrange(1, 40) if kill < 4 else PICTURES)
        time.sleep(chance.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        now = indexed(place)
        assert now >= held
        held = now
    assert held == PICTURES
    found, said = answers(start(many, model_folder, place))
    assert said == ""
    with PictureIndex.open(many, loaded, tmp_path / "whole") as undisturbed:
        assert undisturbed.update().added == PICTURES
        hits = undisturbed.search_text(QUERY, PICTURES)
    assert found == {str(hit.path): pytest.approx(hit.score, abs=1e-5) for hit in hits}
    assert len(found) == PICTURES


@pytest.mark.slow
def test_while_one_updates_another_is_told_and_searches_what_is_there(many, model_folder, loaded, tmp_path):
    place = tmp_path / "index"
    first = start(many, model_folder, place, "--batch-size", "1")
    wait_for(first, place, 5)
    os.kill(first.pid, signal.SIGSTOP)  # so that it is in the middle for as long as this takes
    try:
        with PictureIndex.open(many, loaded, place) as index:
            assert 5 <= len(index.search_text(QUERY, 300)) < PICTURES
        second = start(many, model_folder, place)
        _, said = second.communicate()
        assert second.returncode == 2
        assert f"process {first.pid} on" in said
        assert said.count("\n") == 1
    finally:
        os.kill(first.pid, signal.SIGCONT)
    found, _ = answers(first)
    assert len(found) == PICTURES


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_done(many, model_folder, loaded, tmp_path):
    place = tmp_path / "index"
    process = start(many, model_folder, place, "--workers", "1")
    wait_for(process, place, 10)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert (process.returncode, said) == (130, "diffclip: interrupted\n")
    held = indexed(place)
    assert 10 <= held < PICTURES
    with PictureIndex.open(many, loaded, place) as index:
        assert index.update().added == PICTURES - held

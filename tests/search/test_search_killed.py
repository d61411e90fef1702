"""Real processes that index and are killed at any moment."""

from __future__ import annotations

import random
import time
from multiprocessing import get_context
from pathlib import Path

import pytest

import diffclip.search.index
from diffclip.model_source import Loaded
from diffclip.search import ImageIndex, Update

IMAGES = 150
QUERY = "a red square beside a blue one"


def update(folder: Path, loaded: Loaded, place: Path, workers: int) -> None:
    diffclip.search.index._SAVE_SECONDS, diffclip.search.index._SAVE_SHARE = 0.0, 1e9  # after every batch
    ImageIndex(folder, loaded, place).update(batch_size=1, workers=workers)


@pytest.mark.slow
def test_killed_again_and_again_it_goes_on_and_finds_the_same(draw, loaded, tmp_path):
    folder, place, chance = tmp_path / "many", tmp_path / "killed", random.Random(0)
    for number in range(IMAGES):
        draw(folder / f"{number % 7}" / f"{number:03d}.png", number)
    held = 0
    for kill in range(8):
        # a fork starts at once, and a kill ends it like any other process
        process = get_context("fork").Process(target=update, args=(folder, loaded, place, kill % 2))
        process.start()
        time.sleep(0.1 + 0.5 * chance.random())
        process.kill()
        process.join()
        now = len(ImageIndex(folder, loaded, place))
        assert now >= held
        held = now
    assert held > 0
    index = ImageIndex(folder, loaded, place)
    assert index.update() == Update(IMAGES - held, 0, 0, [], IMAGES)
    whole = ImageIndex(folder, loaded, tmp_path / "whole")
    whole.update()
    wanted = {hit.path: pytest.approx(hit.score, abs=1e-3) for hit in whole.search_text(QUERY, IMAGES)}
    assert {hit.path: hit.score for hit in index.search_text(QUERY, IMAGES)} == wanted

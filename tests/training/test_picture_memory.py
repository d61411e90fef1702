"""Runs whose pictures stay in memory are the runs that read them from shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_loop import KilledError, changed, finished, lines, without_times  # noqa: F401
from zeroed_pictures import zero_pictures

from diffclip import InputError
from diffclip.data import pictures
from diffclip.data.picture_memory import PictureMemory
from diffclip.data.shards import Shards, expand_shards
from diffclip.training import loop
from diffclip.training.about import read_starts
from diffclip.training.complete import complete_run
from diffclip.training.recipe import Recipe


def check_same_run(run: Path, known: Path) -> None:
    for name in ("metrics.jsonl", "validation.jsonl"):
        assert without_times(run / name) == without_times(known / name)


def test_a_run_is_the_same(
    finished: Path,  # noqa: F811
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop.train(recipe, tmp_path / "a", memory=PictureMemory(tmp_path / "memory"))
    check_same_run(tmp_path / "a", finished)
    # the second has nothing left to read
    monkeypatch.setattr(pictures, "_read", lambda *given: pytest.fail("read again"))
    said: list[str] = []
    complete_run(recipe, tmp_path / "b", said.append, PictureMemory(tmp_path / "memory"))
    check_same_run(tmp_path / "b", finished)
    [known], [start] = read_starts(finished), read_starts(tmp_path / "b")
    assert start["data"] == known["data"] | {"resident": "cpu"}


def test_a_run_whose_crops_are_made_at_once_is_close(
    finished: Path,  # noqa: F811
    recipe: Recipe,
    tmp_path: Path,
) -> None:
    loop.train(recipe, tmp_path / "a", memory=PictureMemory(tmp_path / "memory", batched=True))
    [start] = read_starts(tmp_path / "a")
    assert start["data"]["resident"] == "cpu, batched"
    for ours, known in zip(
        lines(tmp_path / "a" / "metrics.jsonl"), lines(finished / "metrics.jsonl"), strict=True
    ):
        assert ours["loss"] == pytest.approx(known["loss"], rel=0.02)


def test_a_run_may_be_resumed_from_memory(
    finished: Path,  # noqa: F811
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = changed(recipe, checkpoint_every=2)
    step, calls = torch.optim.AdamW.step, iter(range(1, 1000))

    def step_or_die(self: torch.optim.AdamW, *arguments: Any) -> Any:
        if next(calls) == 8:
            raise KilledError
        return step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", step_or_die)
        with pytest.raises(KilledError):
            loop.train(recipe, tmp_path / "a")
    loop.train(recipe, tmp_path / "a", resume=True, memory=PictureMemory(tmp_path / "memory"))
    check_same_run(tmp_path / "a", finished)


def test_broken_samples_are_skipped_and_named(recipe: Recipe, scenes: Path, tmp_path: Path) -> None:
    [shard] = expand_shards(str(scenes / "train"))
    zero_pictures(shard, tmp_path / "0.tar", [3])
    recipe = changed(recipe, data={"train": str(tmp_path / "0.tar")})
    outcome = loop.train(recipe, tmp_path / "a", memory=PictureMemory(tmp_path / "memory"))
    assert list(outcome.skipped) == [Shards([tmp_path / "0.tar"]).name(3)]
    loop.train(recipe, tmp_path / "b")
    check_same_run(tmp_path / "a", tmp_path / "b")


def test_data_with_a_window_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"leave data\.window out"):
        loop.train(
            changed(recipe, data={"window": 1}), tmp_path / "a", memory=PictureMemory(tmp_path / "memory")
        )
    assert not (tmp_path / "a").exists()

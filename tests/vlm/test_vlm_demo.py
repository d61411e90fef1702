"""The whole way to a language model that sees, in miniature."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from diffclip.evaluation.pope_names import is_blind
from diffclip.evaluation.records import read_records

MADE = (
    *("scenes", "conversations", "questions", "language model"),
    *(f"{model}-s0{part}" for model in ("CLIP", "DiffCLIP") for part in ("", "-stage1", "-stage2")),
)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Indexes of shards stay out of the user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_everything_is_made_asked_and_used_again(tmp_path: Path) -> None:
    from diffclip.cli.vlm_demo_run import run_vlm_demo

    from diffclip.vlm.demo import Size
    from diffclip.vlm.language_model import Schooling
    from diffclip.vlm.scenes import Talks

    size = Size(
        *(64, 16, 12, 6),
        talks=Talks(pictures=24, talks=1),
        schooling=Schooling(32, 1, 2, first_steps=2, steps=4, batch_size=4),
        tower=["epochs=1", "batch_size=32", "warmup_epochs=0"],
        recipe=[
            f"stage{stage}.{key}=8" for stage in (1, 2) for key in ("batch_size", "per_device_batch_size")
        ],
    )
    first: list[str] = []
    page = run_vlm_demo(tmp_path / "demo", [0], first.append, size)
    assert "POPE" in page.read_text()
    records = read_records(tmp_path / "demo" / "pope.jsonl")
    accuracies = [one for one in records if one.metric == "accuracy" and one.split == "random"]
    # two models, two sets of questions, with the pictures and without
    assert len(accuracies) == 8
    assert {one.dataset for one in accuracies} == {"scenes-kinds", "scenes-colours"}
    assert sum(is_blind(one.protocol) for one in accuracies) == 4
    assert {one.count for one in accuracies if one.dataset == "scenes-kinds"} == {36}
    assert not [line for line in first if "reusing" in line]

    second: list[str] = []
    run_vlm_demo(tmp_path / "demo", [0], second.append, size)
    assert [line.split(":")[0] for line in second if "reusing" in line] == list(MADE)
    assert read_records(tmp_path / "demo" / "pope.jsonl") == records

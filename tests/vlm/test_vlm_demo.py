"""`diffclip vlm demo` in miniature."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffclip.evaluation.records import read_records

PARTS = (
    *("scenes", "conversations", "questions about colours", "questions about kinds", "language model"),
    *(f"{model}-s0{part}" for model in ("CLIP", "DiffCLIP") for part in ("-stage1", "-stage2")),
)


@pytest.mark.slow(minutes=1)
def test_everything_is_made_and_evaluated_once(tmp_path: Path) -> None:
    from diffclip.cli.vlm_demo import run_vlm_demo
    from diffclip.vlm.demo import DemoSettings
    from diffclip.vlm.language_model import LanguageSettings
    from diffclip.vlm.scenes import TalkSettings

    settings = DemoSettings(
        *(64, 16, 12, 6),
        talks=TalkSettings(images=24, talks=1),
        language=LanguageSettings(32, 1, 2, first_steps=2, steps=4, batch_size=4),
        tower=["epochs=1", "batch_size=32", "warmup_epochs=0"],
        recipe=[
            f"stage{stage}.{key}=8" for stage in (1, 2) for key in ("batch_size", "per_device_batch_size")
        ],
    )
    first: list[str] = []
    page = run_vlm_demo(tmp_path / "demo", [0], first.append, settings)
    assert "POPE" in page.read_text()
    records = read_records(tmp_path / "demo" / "pope.jsonl")
    accuracies = [one for one in records if one.metric == "accuracy" and one.split == "random"]
    # two models, two sets of questions, with the images and without
    assert len(accuracies) == 8
    assert {one.dataset for one in accuracies} == {"scenes-kinds", "scenes-colours"}
    assert {one.count for one in accuracies if one.dataset == "scenes-kinds"} == {36}
    assert not [line for line in first if "reusing" in line]

    second: list[str] = []
    run_vlm_demo(tmp_path / "demo", [0], second.append, settings)
    assert [line.split(":")[0] for line in second if "reusing" in line] == list(PARTS)
    assert read_records(tmp_path / "demo" / "pope.jsonl") == records

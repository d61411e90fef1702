"""The demonstration from end to end, as a user starts it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest
from test_packaging import HIDE

from diffclip.demo import run_demo

SMALLER = """
import diffclip.demo
from diffclip.cli.main import main

diffclip.demo._TRAIN, diffclip.demo._VAL, diffclip.demo._TEST = 2000, 100, 300
read = diffclip.demo.read_recipe
diffclip.demo.read_recipe = lambda name, changes: read(name, [*changes, "batch_size=64"])
main()
"""


def demo(folder: Path) -> subprocess.CompletedProcess[str]:
    """The demonstration on fewer scenes, with the distributions alone that `diffclip[train]` asks for."""
    command = [sys.executable, "-c", 'EXTRAS = ["train"]' + HIDE + SMALLER, "demo", "--folder", str(folder)]
    return subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, timeout=3000)


def test_the_scenes_show_their_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Mock()
    writing = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("diffclip.demo.write_scenes", writing)
    with pytest.raises(KeyboardInterrupt):
        run_demo(tmp_path, print, lambda part: nullcontext(getattr(shown, part)))
    assert writing.call_args.kwargs["progress"] is shown.scenes


@pytest.mark.slow(minutes=3)
def test_the_demo_trains_both_models_far_above_chance_and_is_used_again(tmp_path: Path) -> None:
    first = demo(tmp_path / "demo")
    assert first.returncode == 0, first.stderr[-2000:]
    page = (tmp_path / "demo" / "report.html").read_text()
    for section in (
        "Not learned",
        "Zero-shot by shape",
        "Retrieved examples",
        "Attention",
        "How it was made",
    ):
        assert section in page
    assert not re.search(r'(src|href)="https?:', page)
    for model in ("CLIP", "DiffCLIP"):
        lines = (tmp_path / "demo" / model / "results.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        values = {(record["metric"], record["dataset"]): record["value"] for record in records}
        # chance: 1.7 % for images among 300 and for captions, 5 of 1,500 being right; 9.1 % for 11 colors
        assert values["image_retrieval_recall@5", "captions"] > 0.1
        assert values["text_retrieval_recall@5", "captions"] > 0.1
        assert values["acc1", "colours"] > 0.25
        assert {record["model"] for record in records} == {model}
    # one run of each decides nothing
    for place in (page, first.stdout):
        assert "One run each" in place
        assert 'class="better"' not in place
        assert 'class="worse"' not in place
    assert not re.search(r"\bbetter\b|\bworse\b|\bp\b", first.stdout)
    made = (tmp_path / "demo" / "CLIP" / "checkpoints" / "last").readlink()

    second = demo(tmp_path / "demo")
    assert second.returncode == 0, second.stderr[-2000:]
    assert second.stdout.count("reusing") == 1  # the scenes; finished runs are left as they are
    assert (tmp_path / "demo" / "CLIP" / "checkpoints" / "last").readlink() == made

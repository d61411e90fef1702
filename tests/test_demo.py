"""The demonstration from end to end, on a third of its scenes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from in_process import diffclip_command


@pytest.mark.slow(minutes=3)
def test_the_demo_trains_both_models_far_above_chance_and_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split, scenes in {"TRAIN": 2000, "VAL": 200, "TEST": 400}.items():
        monkeypatch.setattr(f"diffclip.demo._{split}", scenes)
    folder = tmp_path / "demo"
    first = diffclip_command("demo", "--folder", folder)
    assert first.returncode == 0, first.stderr[-2000:]
    page = (folder / "report.html").read_text()
    for section in ("Retrieved examples", "Attention", "How it was made"):
        assert section in page
    assert not re.search(r'(src|href)="https?:', page)
    for model in ("CLIP", "DiffCLIP"):
        records = [json.loads(line) for line in (folder / model / "results.jsonl").read_text().splitlines()]
        [recall] = [record for record in records if record["metric"] == "mean_recall"]
        assert recall["value"] > 3 * recall["chance"]
        assert {record["model"] for record in records} == {model}
    # one run of each decides nothing
    for place in (page, first.stdout):
        assert "One run each" in place
        assert 'class="better"' not in place
        assert 'class="worse"' not in place
    assert not re.search(r"\bbetter\b|\bworse\b|\bp\b", first.stdout)
    made = (folder / "CLIP" / "checkpoints" / "last").readlink()

    second = diffclip_command("demo", "--folder", folder)
    assert second.returncode == 0, second.stderr[-2000:]
    assert second.stdout.count("reusing") == 1  # the scenes; finished runs are left as they are
    assert (folder / "CLIP" / "checkpoints" / "last").readlink() == made

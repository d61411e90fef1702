"""The page of mechanisms: a row for every registered kind, with the verdicts of the experiments."""

from pathlib import Path

import pytest

from benchmarks import mechanisms
from diffclip.attention import ATTENTION_LAYERS


def test_the_page_has_every_kind_with_its_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mechanisms, "SIZE", "ViT-Ti-16")
    study = tmp_path / "experiments" / "x"
    study.mkdir(parents=True)
    rows = [
        "DiffCLIP,CLIP,better",
        "DiffCLIP,CLIP,undecided",
        "DiffCLIP,CLIP,better",
        "DiffCLIP,CLIP-gated,worse",
    ]
    (study / "verdicts.csv").write_text("\n".join(["arm,against,verdict", *rows]))
    (tmp_path / "docs").mkdir()
    mechanisms.write_page({"CLIP": 1.0, "DiffCLIP": 1.125})
    lines = {
        line.split("`")[1]: line
        for line in (tmp_path / mechanisms.PAGE).read_text().splitlines()
        if "| `" in line
    }
    assert lines.keys() == ATTENTION_LAYERS.keys()
    assert next(iter(lines)) == "softmax"
    assert "| 1.12 | better 2, undecided 1 |" in lines["differential"]
    assert "arXiv:2510.06949" in lines["differential-grouped"]
    assert "no experiment yet" in lines["gated-open"]

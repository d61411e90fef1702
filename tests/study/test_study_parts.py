"""`make study-gpu`: parts of a study on a machine that keeps nothing, each from the results of the part before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_study import ABLATIONS, STUDY

from diffclip.study.results import StudyFolder

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow(minutes=1)
def test_parts_go_on_from_one_another_and_models_come_first(
    study_file: Callable[..., Path], data: Path, tmp_path: Path
) -> None:
    file = study_file(sweep=None, ablations=ABLATIONS, models={**STUDY["models"], "seeds": [0]})  # type: ignore[dict-item]
    other = tmp_path / "other.yaml"
    other.write_text(file.read_text().replace("tiny.yaml", str(tmp_path / "tiny.yaml")))

    def part(name: str, *more: str) -> subprocess.CompletedProcess[str]:
        words = [f"PYTHON={sys.executable}", f"DATA={data}", "DEVICE=cpu", f"STUDIES={other}"]
        words += [f"OUT={tmp_path / name}", f"RUNS={tmp_path / name / 'runs'}", *more]
        command = ["make", "-C", str(ROOT), "study-gpu", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    first = part("a", "SET=ablations=null")
    assert first.returncode == 0, first.stderr
    second = part("b", f"DONE={tmp_path / 'a'}")
    assert second.returncode == 0, second.stderr
    assert "CLIP-s0: started" not in second.stderr.replace("DiffCLIP-no-norm-s0: started", "")
    assert len(StudyFolder(tmp_path / "b" / "results" / "other").runs) == 3
    assert (tmp_path / "b" / "study.tgz").is_file()
    assert part("c", f"DONE={tmp_path / 'none'}").returncode == 2

"""`make study-gpu`: parts of a study on a machine that keeps nothing, each from the results of the part before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_study import ABLATIONS, STUDY

from diffclip.study.results import StudyFolder

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow(minutes=1)
def test_a_part_goes_on_from_the_results_of_the_part_before(study_file, data: Path, tmp_path: Path) -> None:
    one = {**STUDY["models"], "seeds": [0]}  # type: ignore[dict-item]
    file = study_file(sweep=None, ablations=ABLATIONS, models=one, recipe=str(tmp_path / "tiny.yaml"))

    def part(name: str, *more: str) -> subprocess.CompletedProcess[str]:
        words = [f"PYTHON={sys.executable}", f"DATA={data}", "DEVICE=cpu", f"STUDY={file}"]
        words += [f"OUT={tmp_path / name}", f"RUNS={tmp_path / name / 'runs'}", *more]
        command = ["make", "-C", str(ROOT), "study-gpu", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    first = part("a", "SET=ablations=null")
    assert first.returncode == 0, first.stderr
    second = part("b", f"DONE={tmp_path / 'a' / 'study.tgz'}")
    assert second.returncode == 0, second.stderr
    started = [line.split(":")[0] for line in second.stderr.splitlines() if ": started" in line]
    assert started == ["ablations/DiffCLIP-no-norm-s0"]
    assert len(StudyFolder(tmp_path / "b" / "results" / "tiny_study").runs) == 3
    assert part("c", f"DONE={tmp_path / 'none'}").returncode == 2

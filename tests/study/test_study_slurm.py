"""A study as jobs of a real SLURM; skipped where there is none (no `sinfo`), or no submitit."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_study import STUDY

from diffclip.study.results import StudyFolder
from diffclip.training.run_folder import read_lines, read_starts

pytestmark = pytest.mark.skipif(shutil.which("sinfo") is None, reason="needs SLURM")
SLURM = ("--cluster", "slurm", "--slurm", "timeout_min=10")


@pytest.mark.slow(minutes=3)
def test_command_finds_running_jobs_and_queues_lost_ones_again(
    study_file: Callable[..., Path], data: Path, tmp_path: Path
) -> None:
    pytest.importorskip("submitit")
    models = {**STUDY["models"], "seeds": [0]}  # type: ignore[dict-item]
    file = study_file(change={"epochs": 150, "checkpoint_every": 2}, sweep=None, models=models)
    runs, out, log = tmp_path / "runs", tmp_path / "out", tmp_path / "log"
    command = [sys.executable, "-m", "diffclip.cli", "study", file, *SLURM]
    command += ["--data", data, "--runs", runs, "--output", out]

    def wait_for(seen: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 500
        while not seen():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)

    def starts(arm: str) -> int:
        return len(read_starts(runs / "models" / f"{arm}-s0"))

    def steps(arm: str) -> int:
        return len(read_lines(runs / "models" / f"{arm}-s0" / "metrics.jsonl"))

    def scancel(arm: str, *options: str) -> None:
        number = (runs / "models" / f"{arm}-s0.slurm").read_text()
        subprocess.run(["scancel", *options, number], check=True)

    wrong = subprocess.run(
        [*command, "--slurm", "partition=none"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2, wrong.stderr
    assert "diffclip: SLURM refuses the jobs (sbatch: error: " in wrong.stderr
    with log.open("w") as stderr:
        first = subprocess.Popen(command, stderr=stderr)
        wait_for(lambda: steps("CLIP") > 4 and steps("DiffCLIP") > 4)
        first.kill()  # the jobs go on
        first.wait()
        scancel("DiffCLIP")  # lost
        scancel("CLIP", "--signal=USR1")  # saves, and is queued again
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False)
    said = log.read_text()
    assert ended.returncode == 0, said
    assert "2 of 2 runs done" in ended.stdout
    assert "models/CLIP-s0: is in the queue" in said
    assert (starts("CLIP"), starts("DiffCLIP")) == (2, 2)
    for arm in ("CLIP", "DiffCLIP"):
        before, after = read_starts(runs / "models" / f"{arm}-s0")
        assert "asked to stop at step" in before["ended"]["how"]
        assert after["step"] == before["ended"]["step"]
    for line in StudyFolder(out).runs.values():
        logged = [row["step"] for row in read_lines(runs / "models" / f"{line['arm']}-s0" / "metrics.jsonl")]
        assert logged == [1, *range(2, line["steps"] + 1, 2)]  # none lost, none twice

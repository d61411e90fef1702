"""Validation by several processes gives the scores of one, and an error in one ends all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import validations
from test_distributed import free_port
from zeroed_pictures import zero_pictures

from diffclip.data.shards import Shards, expand_shards


def told_by(world: int, val: Path, strategy: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world)]
    command += ["--master-port", str(free_port()), validations.__file__, str(val), strategy]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("told ")]


@pytest.fixture(scope="module")
def alone(scenes: Path) -> dict[str, Any]:
    [told] = told_by(1, scenes / "val", "ddp")
    return told


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_scores_are_those_of_one_process_and_errors_are_everybodys(
    strategy: str, alone: dict[str, Any], scenes: Path
) -> None:
    told = told_by(2, scenes / "val", strategy)
    assert sorted(line["rank"] for line in told) == [0, 1]
    for line in told:
        assert line["scores"] == pytest.approx(alone["scores"])
        assert line["correlation"].keys() == {"visual", "text"}
        for tower, layers in line["correlation"].items():
            assert layers == pytest.approx(alone["correlation"][tower], abs=1e-5)
        assert line["error"] == "no tokens today"
        assert line["finite"]


def test_a_process_whose_pictures_are_all_broken_waits_for_the_others(scenes: Path, tmp_path: Path) -> None:
    [shard] = expand_shards(str(scenes / "val"))
    zero_pictures(shard, tmp_path / "0.tar", range(1, len(Shards([shard])), 2))
    [one] = told_by(1, tmp_path / "0.tar", "ddp")
    for line in told_by(2, tmp_path / "0.tar", "ddp"):
        assert line["scores"] == pytest.approx(one["scores"])
        assert (line["scores"]["pictures"], line["faults"]) == (6, 6)

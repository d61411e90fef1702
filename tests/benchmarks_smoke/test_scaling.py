"""benchmarks.scaling once, as small as it can be, and what docs/scaling.md makes of it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import scaling, scaling_tables  # noqa: E402
from benchmarks.scaling_model import LINKS, collective_seconds, ddp_sent, loss_exchange  # noqa: E402
from benchmarks.scaling_sizes import Sizes  # noqa: E402
from benchmarks.scaling_wire import counted  # noqa: E402

DOCUMENT = ROOT / "docs" / "scaling.md"
TOWER = {"width": 32, "layers": 2, "heads": 4}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("scaling")
    options = argparse.Namespace(device="cpu", threads=1, output=folder, seconds=1.0)
    scope = scaling.Scope(
        worlds=(1, 8),
        batches=(64,),
        models=("ViT-Ti-16",),
        sharded=(8,),
        processes=(1, 2),
        whole=(20_000, 40_000),
        windowed=(40_000,),
        shards=20,
        a_shard=60,
        in_parts="flickr8k_cpu",
        recipe="flickr8k_gpu",
        nodes=1,
    )
    sizes = Sizes(
        batch=32,
        embed=16,
        transfers=(1024, 2048, 4096, 8192),
        model="DiffCLIP",
        architecture={
            "embed_dim": 16,
            "vision": {"image_size": 32, "patch_size": 16, **TOWER},
            "text": {"context_length": 12, "vocab_size": 5000, **TOWER},
        },
        image_size=None,
        step_batch=4,
    )
    scaling.run(options, scope, sizes)
    return json.loads((folder / "scaling.json").read_text(encoding="utf-8"))


def test_what_processes_exchange_and_keep_is_what_the_formulas_say(result: dict[str, Any]) -> None:
    for one in result["checks"]["losses"]:
        assert one["measured"]["saved"] == one["model"]["saved"], one
        if counted() and one["world"] == 2:
            for key in ("sent_forward", "sent_backward", "sent_accuracy"):
                assert one["measured"][key] == pytest.approx(one["model"][key], abs=2000), (one["case"], key)
    steps = {one["strategy"]: one for one in result["checks"]["steps"]}
    assert steps.keys() == {"one process", "ddp", "fsdp", "fsdp, in parts"}
    for one in steps.values():
        said, found = one["model"], one["measured"]
        assert found["weights"] == pytest.approx(said["weights"], rel=0.01)
        assert found["optimiser"] == pytest.approx(said["optimiser"], rel=0.01)
        if counted():
            assert found["sent"] == pytest.approx(said.get("sent_by_gloo", said["sent"]), rel=0.1)


def test_checkpoints_and_batches_are_for_any_number_of_processes(result: dict[str, Any]) -> None:
    assert result["same_samples"]["same"]
    ways = [way for one in result["checkpoints_measured"].values() for way in one["going_on"]]
    assert {(way["from"], way["to"]) for way in ways} == {(1, 1), (1, 2), (2, 2)}
    assert all(way["step"] == 2 for way in ways)
    for one in result["checkpoints_measured"].values():
        assert one["bytes"] > 12 * one["parameters"]


def test_every_section_of_the_document_is_filled(result: dict[str, Any], tmp_path: Path) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert set(scaling_tables.sections_of(text)) == scaling_tables.SECTIONS.keys()
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    scaling_tables.write_tables(page, {})
    assert page.read_text(encoding="utf-8").count("Not measured yet") == len(scaling_tables.SECTIONS)
    scaling_tables.write_tables(page, {"scaling": result})
    filled = page.read_text(encoding="utf-8")
    assert "Not measured yet" not in filled
    assert "the same samples in the same order" in filled


def test_bytes_and_seconds_by_hand() -> None:
    exchange = loss_exchange("clip", True, world=4, batch=4096, embed=512)
    assert exchange.forward == exchange.backward == 2 * 3 * 1024 * 512 * 4
    assert loss_exchange("clip", False, 4, 4096, 512).backward == 0
    assert loss_exchange("siglip", True, 4, 4096, 512).all == 2 * exchange.forward
    assert ddp_sent(1000, 4) == 6000
    link = LINKS["ethernet"]
    assert collective_seconds(1e9, 1, link) == 0
    # two nodes of 8: half of what a process receives but for its own comes from the other node
    seconds = collective_seconds(15e9, 16, link)
    assert seconds == pytest.approx(8e9 / link.node + 14 * 1.9e-6 + 4e-6)


def _script() -> str:
    return DOCUMENT.read_text(encoding="utf-8").split("<!-- slurm -->\n```bash\n")[1].split("```")[0]


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (75, True), (2, False)])
def test_the_slurm_script_requeues_on_75_alone(code: int, requeued: bool, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, ending in {"srun": code, "scontrol": 0}.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> told\nexit {ending}\n')
        program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    for started in (False, True):
        done = subprocess.run(["bash", "-c", _script()], cwd=tmp_path, env=environment)
        assert done.returncode == code
        told = (tmp_path / "told").read_text()
        assert ("scontrol requeue 7" in told) == requeued
        assert ("--resume" in told) == started
        (tmp_path / "runs" / "laion").mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / "laion" / "recipe.yaml").touch()

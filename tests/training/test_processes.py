"""Whole runs of two processes: the samples and numbers of one process, and checkpoints for any number of processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import forked
import pytest
from optimizer_steps import KilledError, before_step, die
from tiny_recipe import changed
from torch.distributed.elastic.utils.distributed import get_free_port
from zeroed_images import zero_images

from diffclip.cli.main import main
from diffclip.training import distributed
from diffclip.training import run as runner
from diffclip.training.checkpoint import read_state
from diffclip.training.recipe import Recipe, parse_recipe
from diffclip.training.run_folder import read_lines, read_starts


def start(recipe: Recipe, run: Path, *options: str, **variables: str) -> subprocess.Popen[str]:
    """Start `diffclip train` with two processes (or as `options` say), as a user does."""
    file = run.with_suffix(".yaml")
    file.write_text(recipe.to_yaml())
    command = [sys.executable, "-m", "diffclip.cli", "train", str(file), "--run", str(run)]
    command += [
        "--accelerator",
        "cpu",
        *(options if "--devices" in options else ("--devices", "2", *options)),
    ]
    return begun(command, **variables)


def begun(command: list[str], **variables: str) -> subprocess.Popen[str]:
    environment, pipe = {**os.environ, "OMP_NUM_THREADS": "1", **variables}, subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out + err


def metrics(run: Path) -> list[dict[str, Any]]:
    return read_lines(run / "metrics.jsonl")


def assert_same_curve(a: Path, b: Path) -> None:
    """Compare with a tolerance, since sums in another order drift apart slowly; `b` may be longer."""
    assert len(metrics(a)) <= len(metrics(b))
    for first, second in zip(metrics(a), metrics(b), strict=False):
        for name in ("step", "epoch", "samples", "lr"):
            assert first[name] == second[name]
        for name in ("loss", "grad_norm", "logit_scale"):
            assert second[name] == pytest.approx(first[name], rel=2e-4), (first["step"], name)


@pytest.fixture(scope="module")
def recipe(fields: dict[str, Any]) -> Recipe:
    """A recipe with a constant learning rate, so that a run of more epochs begins the same way."""
    return parse_recipe(fields | {"lr_start": 1e-3, "lr_end": 1e-3}, "test")


@pytest.fixture(scope="module")
def alone(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    run = tmp_path_factory.mktemp("alone") / "run"
    runner.train(recipe, run)
    return run


def test_two_processes_train_like_one(alone: Path, recipe: Recipe, tmp_path: Path) -> None:
    run = tmp_path / "run"
    codes, outputs = ended(begin_ranks(recipe, run))
    assert codes == [0, 0], outputs
    assert list(map(lines_of, outputs)) == [[], []]
    assert_same_curve(alone, run)
    for solo, pair in zip(*(read_lines(folder / "validation.jsonl") for folder in (alone, run)), strict=True):
        correlations = [line.pop("map_correlation") for line in (solo, pair)]
        assert pair == pytest.approx(solo, abs=0.1)  # one or two images of twelve may differ
        assert pair["captions"] == 60
        for tower, layers in correlations[0].items():
            assert correlations[1][tower] == pytest.approx(layers, abs=0.02)


def wait_for(process: subprocess.Popen[str], run: Path, steps: int) -> None:
    file = run / "metrics.jsonl"
    while not file.is_file() or len(file.read_text().splitlines()) < steps:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)


@pytest.mark.slow
def test_runs_resume_with_another_number_of_processes_or_strategy(recipe: Recipe, tmp_path: Path) -> None:
    recipe = changed(recipe, epochs=12, checkpoint_every=2, data={"val": None})
    whole, run = tmp_path / "whole", tmp_path / "run"
    runner.train(recipe, whole)
    with pytest.MonkeyPatch.context() as patch:
        before_step(patch, 5, die)
        with pytest.raises(KilledError):
            runner.train(recipe, run)
    last = run / "checkpoints" / "last"
    assert read_state(last).step == 4
    process = start(recipe, run, "--resume", "--strategy", "fsdp", "--max-restarts", "1")
    wait_for(process, run, 8)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ranks = [int(pid) for pid in children if b"train" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(ranks[1], signal.SIGKILL)
    # until a step after the restart is recorded
    while len(read_starts(run)) < 3 or metrics(run)[-1]["time"] < read_starts(run)[-1]["time"]:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGUSR1)  # a second signal does not cut the saving short
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 75, stderr
    killed, line = lines_of(stderr)
    assert killed == "diffclip: process 1 of 2 was killed by signal 9: go on with --resume; restart 1 of 1"
    assert "asked to stop at step" in line
    assert line.endswith("go on with --resume")
    stopped = read_state(last).step
    assert 8 <= stopped < 60
    process = start(recipe, run, "--resume")
    wait_for(process, run, stopped + 4)
    process.kill()  # its other processes die with it
    process.communicate()
    assert stopped + 2 <= read_state(last).step < 60
    runner.train(recipe, run, resume=True)
    assert_same_curve(whole, run)


def command_line(*words: str) -> None:
    sys.argv = ["diffclip", *words]
    main()


def command_line_of_another_processor(*words: str) -> None:
    """The command where the first process alone multiplies bfloat16 natively."""
    distributed.has_bf16 = lambda _: os.environ["SLURM_PROCID"] == "0"
    command_line(*words)


def begin_ranks(
    recipe: Recipe, run: Path, command: Callable[..., None] = command_line
) -> list[tuple[ForkServerProcess, Path]]:
    """Train in two processes as SLURM starts them; return each process with the file of its output."""
    file, port, logs = run.with_suffix(".yaml"), get_free_port(), [run.with_suffix(f".{r}") for r in "01"]
    file.write_text(recipe.to_yaml())
    words = ["train", str(file), "--run", str(run), "--accelerator", "cpu"]
    variables = [started_by_slurm(rank, port) for rank in range(2)]
    return [
        (forked.begin(log, command, *words, OMP_NUM_THREADS="1", **own), log)
        for log, own in zip(logs, variables, strict=True)
    ]


def ended(ranks: list[tuple[ForkServerProcess, Path]]) -> tuple[list[int | None], list[str]]:
    """Wait for the processes; return their exit codes and outputs."""
    for process, _ in ranks:
        process.join(300)
    return [process.exitcode for process, _ in ranks], [log.read_text() for _, log in ranks]


def lines_of(output: str) -> list[str]:
    """Return the lines of ours in an output without a traceback."""
    assert "Traceback" not in output
    return [line for line in output.splitlines() if line.startswith("diffclip: ")]


def started_by_slurm(rank: int, port: int) -> dict[str, str]:
    """The environment that SLURM gives process `rank` of two."""
    own = {"NTASKS": 2, "NTASKS_PER_NODE": 2, "NNODES": 1, "PROCID": rank, "LOCALID": rank, "NODEID": 0}
    own |= {"JOB_ID": 7, "JOB_NAME": "train"}
    slurm = {f"SLURM_{name}": str(value) for name, value in own.items()}
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **slurm}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "nodes"])
def test_torchrun_or_manual_nodes_can_start_the_processes(launcher, alone, recipe, tmp_path) -> None:
    run, nodes = tmp_path / "run", launcher == "nodes"
    recipe = changed(recipe, epochs=1, warmup_epochs=0, lr_end=0, data={"val": None})
    if nodes:  # one process on each of two nodes, started by hand
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(get_free_port())}
        options = ["--devices", "1", "--nodes", "2"]
        processes = [start(recipe, run, *options, **master, NODE_RANK=rank) for rank in "01"]
    else:
        file = tmp_path / "recipe.yaml"
        file.write_text(recipe.to_yaml())
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        torchrun += ["--master-port", str(get_free_port()), "-m", "diffclip.cli"]
        # torchrun would read --run as an option of its own
        processes = [begun([*torchrun, "train", str(file), "-r", str(run), "--accelerator", "cpu"])]
    output = "".join(finish(process) for process in processes)
    assert output.count("5 steps, 40 samples") == 1
    starts = json.loads((run / "about.json").read_text())["starts"]
    assert starts[0]["processes"]["world"] == 2
    assert starts[0]["processes"]["nodes"] == (2 if nodes else 1)
    assert metrics(run)[0]["loss"] == pytest.approx(metrics(alone)[0]["loss"], rel=1e-5)


@pytest.mark.slow
def test_a_rank_reports_its_killed_peer_in_one_line_without_a_launcher(alone, recipe, tmp_path) -> None:
    run = tmp_path / "run"
    ranks = begin_ranks(changed(recipe, epochs=60), run)
    while len(metrics(run)) < 3:
        assert ranks[0][0].exitcode is None, ranks[0][1].read_text()
        time.sleep(0.02)
    assert json.loads((run / "about.json").read_text())["starts"][0]["processes"]["world"] == 2
    ranks[1][0].kill()
    codes, outputs = ended(ranks)
    assert codes == [1, -signal.SIGKILL], outputs
    [line] = lines_of(outputs[0])
    assert "process 0 of 2 lost contact with another process" in line
    assert line.endswith("go on with --resume")
    assert metrics(run)[0]["loss"] == pytest.approx(metrics(alone)[0]["loss"], rel=1e-5)


@pytest.mark.slow
def test_input_errors_are_reported_by_only_one_process(recipe: Recipe, tmp_path: Path) -> None:
    codes, outputs = ended(begin_ranks(changed(recipe, batch_size=9), tmp_path / "run"))
    assert codes == [2, 2], outputs
    [[line], none] = map(lines_of, outputs)
    assert "batch_size 9 cannot be shared equally by 2 processes" in line
    assert none == []
    assert not (tmp_path / "run").exists()
    codes, outputs = ended(begin_ranks(changed(recipe, lr=1e30, lr_start=1e30), tmp_path / "diverged"))
    assert codes == [1, 1], outputs
    assert ["start again with a lower lr" in output for output in outputs] == [True, False]
    # with a window, each process has its own shards: here, one process has a shard of broken samples
    [shard] = Path(str(recipe.data.train)).glob("*.tar")
    train = zero_images(shard, tmp_path / "train" / "broken.tar", range(40)).parent
    shutil.copy(shard, train / "whole.tar")
    codes, outputs = ended(
        begin_ranks(changed(recipe, data={"train": str(train), "window": 1}), tmp_path / "x")
    )
    assert codes == [2, 2], outputs
    [[line], none] = map(lines_of, outputs)
    assert "of one process in " in line
    assert none == []
    automatic, command = changed(recipe, precision="auto"), command_line_of_another_processor
    codes, outputs = ended(begin_ranks(automatic, tmp_path / "mixed", command))
    assert codes == [2, 2], outputs
    assert "precision auto is bf16 on some nodes and fp32 on others: give precision=fp32" in outputs[0]
    assert not (tmp_path / "mixed").exists()


@pytest.mark.slow
def test_a_diverged_run_is_not_restarted(recipe: Recipe, tmp_path: Path) -> None:
    recipe = changed(recipe, lr=1e30, lr_start=1e30)
    process = start(recipe, tmp_path / "run", "--devices", "1", "--max-restarts", "2")
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 1
    [line] = lines_of(stderr)
    assert "start again with a lower lr" in line

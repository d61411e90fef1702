"""The command line, partly in subprocesses: its imports, its output and its exit codes."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import typer
import yaml
from in_process import diffclip_command
from PIL import Image
from tiny_recipe import tiny_recipe

import diffclip
from diffclip.cli.console import show_progress
from diffclip.cli.main import app
from diffclip.data.workers import map_processes
from diffclip.errors import DiffCLIPError, StoppedError


def names_of(group: Any, prefix: str = "") -> list[str]:
    """List the commands of a group and of its subgroups."""
    if not hasattr(group, "commands"):
        return [prefix.strip()]
    return [name for key, inner in group.commands.items() for name in names_of(inner, f"{prefix} {key}")]


COMMANDS = names_of(typer.main.get_command(app))


def test_help_imports_no_heavy_package_and_sets_omp_wait_policy() -> None:
    code = (
        "import sys\nsys.argv = ['diffclip', '--help']\n"
        "from diffclip.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'timm', 'open_clip', 'numpy', 'PIL', 'lightning', 'matplotlib', 'pydantic', 'webdataset'}\n"
        "import os; print(sorted(heavy & set(sys.modules)), os.environ['OMP_WAIT_POLICY'])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert result.stdout.splitlines()[-1] == "[] PASSIVE", result.stderr


def test_the_library_sets_the_waiting_of_threads_or_knows_that_it_came_too_late() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    for first, late in (("diffclip", False), ("torch", True)):
        code = f"import {first}, os, diffclip; print(os.environ['OMP_WAIT_POLICY'], diffclip.threads.SPIN)"
        command = [sys.executable, "-c", code]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert result.stdout == f"PASSIVE {late}\n", result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    done = diffclip_command(*command.split(), "--help")
    assert done.returncode == 0
    assert f"Example: diffclip {command}" in " ".join(done.stdout.split())


def test_version_is_printed() -> None:
    assert diffclip_command("--version").stdout == f"diffclip {diffclip.__version__}\n"


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make `diffclip demo` raise `error`."""
    monkeypatch.setattr("diffclip.demo.run_demo", Mock(side_effect=error))


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (PermissionError(13, "Permission denied", "a.png"), 2, "cannot read or write a.png: Permission"),
        (OSError("no\nnumber"), 2, "cannot read or write: no number; "),
        (DiffCLIPError("a\x1b[2Jb"), 1, "a\\x1b[2Jb\n"),
        (DiffCLIPError("step 3: the loss is nan"), 1, "step 3: the loss is nan\n"),
        (StoppedError("asked to stop"), 75, "runs/demo: stopped, the state is saved: the same command"),
    ],
)
def test_runtime_failures_are_one_line(error: BaseException, code: int, line: str, monkeypatch) -> None:
    failing(monkeypatch, error)
    done = diffclip_command("demo")
    assert done.returncode == code
    assert done.stderr.startswith(f"diffclip: {line}")
    assert len(done.stderr.splitlines()) == 1


def test_a_killed_data_worker_is_one_line_wherever_the_program_is(monkeypatch) -> None:
    def demo(*_: object) -> None:
        pids = map_processes(lambda _: os.getpid(), range(9), workers=1)
        os.kill(next(pids), signal.SIGKILL)
        time.sleep(60)  # torch's handler of SIGCHLD raises here

    monkeypatch.setattr("diffclip.demo.run_demo", demo)
    done = diffclip_command("demo")
    assert done.returncode == 1
    assert done.stderr.startswith("diffclip: a data worker died (it was killed by signal 9): ")
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_prints_one_line_and_exits_with_130(monkeypatch) -> None:
    monkeypatch.setattr("diffclip.cli.main.app", Mock(side_effect=KeyboardInterrupt))
    done = diffclip_command("report")
    assert (done.returncode, done.stderr) == (130, "diffclip: interrupted\n")


@pytest.mark.parametrize(
    ("command", "function"),
    [("demo", "diffclip.demo.run_demo"), ("vlm demo", "diffclip.vlm.demo.run_vlm_demo")],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_demo_prints_how_to_resume(command: str, function: str, number: int, monkeypatch) -> None:
    monkeypatch.setattr(function, lambda *_, **__: signal.raise_signal(number))
    done = diffclip_command(*command.split(), "--folder", "some")
    assert done.returncode == 75
    assert done.stdout.startswith("some: loading PyTorch")
    assert done.stderr == "diffclip: some: stopped, the state is saved: the same command goes on\n"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_progress_shows_rate_and_time_left(capsys, monkeypatch) -> None:
    monkeypatch.setattr("diffclip.cli.console.time", Mock(monotonic=Mock(side_effect=[0.0, 10.0, 20.0])))
    with show_progress("classify") as progress:
        progress("images", 10, 100)
        progress("images", 30, 100)
    assert capsys.readouterr().err == " 40 %, 2.0/s, 30 s left: images: classify\n"
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with show_progress("classify") as progress:
        progress("images", 10, 100)
        progress("images", 30, 100)
    assert re.search(r"40%.*/s.*images: classify", terminal.getvalue())


def test_bugs_keep_their_traceback(monkeypatch) -> None:
    failing(monkeypatch, ValueError("ours"))
    with pytest.raises(ValueError, match="ours"):
        diffclip_command("demo")


@pytest.mark.parametrize(
    ("command", "module", "group"),
    [
        ("demo --folder demo", "lightning", "train"),
        ("demo --folder demo", "statsmodels", "report"),
        ("evaluate CLIP-ViT-B-16 --data sets", "scipy", "report"),
        ("vlm evaluate runs/vlm --data sets --output pope.jsonl", "statsmodels", "report"),
        ("report results.jsonl", "statsmodels", "report"),
        ("train scenes_demo data.train=absent", "pandas", "report"),
        ("study study_cpu --dry-run", "pandas", "report"),
        ("explore --model CLIP-ViT-B-16", "gradio", "web"),
    ],
)
def test_missing_extra_is_named(command: str, module: str, group: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    done = diffclip_command(*command.split(), cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"missing packages ({module}): run pip install 'diffclip[{group}]'" in line


@pytest.mark.parametrize(
    ("shell", "code", "message"),
    [('"$@" | true', 0, ""), ('exec "$@" >&-', 0, ""), ('exec "$@" > /dev/full', 2, "No space left")],
)
def test_closed_or_full_stdout_causes_no_traceback(shell: str, code: int, message: str) -> None:
    if "full" in shell and not Path("/dev/full").exists():
        pytest.skip("needs a device that is always full")
    command = ["sh", "-c", shell, "sh", sys.executable, "-m", "diffclip.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == bool(message)
    assert message in done.stderr


@pytest.fixture(scope="module")
def workplace(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with scenes and a recipe that trains on them."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "scenes").symlink_to(scenes)
    data = {"train": "scenes/captions/train", "val": "scenes/captions/val"}
    recipe = tiny_recipe(size=32, context=16, epochs=1, data=data)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    return folder


@pytest.fixture(scope="module")
def trained(workplace: Path) -> Path:
    result = diffclip_command("train", "tiny.yaml", "seed=3", "--run", "runs/a", cwd=workplace)
    assert result.returncode == 0, result.stderr
    assert "5 steps, 40 samples" in result.stdout
    assert (workplace / "runs" / "a" / "report.html").exists()
    return workplace / "runs" / "a"


def test_run_resumes_without_its_recipe_and_for_more_epochs(trained: Path, workplace: Path) -> None:
    copy = trained.parent / "copy"
    shutil.copytree(trained, copy, symlinks=True)
    result = diffclip_command("train", "--resume", "--run", "runs/copy", "epochs=2", cwd=workplace)
    assert result.returncode == 0, result.stderr
    assert "going on after step 5 of 10" in result.stderr
    assert "10 steps, 80 samples" in result.stdout


def test_trained_run_is_evaluated_and_converted_there_and_back(trained: Path, workplace: Path) -> None:
    arguments = ("--task", "retrieval", "--data", "scenes/captions", "--output", "r.jsonl")
    result = diffclip_command("evaluate", "runs/a", *arguments, cwd=workplace)
    assert result.returncode == 0, result.stderr
    records = [json.loads(line) for line in (workplace / "r.jsonl").read_text().splitlines()]
    facts = {(record["seed"], record["split"], record["count"]) for record in records}
    assert facts == {(3, "test", 480), (3, "test", 96)}

    assert diffclip_command("convert", "runs/a", "hub/checkpoint_best.pt", cwd=workplace).returncode == 0
    assert diffclip_command("convert", "hub", "back", cwd=workplace).returncode == 0
    from safetensors.torch import load_file

    folders = (trained / "checkpoints/last", workplace / "back")
    first, second = (load_file(folder / "model.safetensors") for folder in folders)
    assert first.keys() == second.keys()
    assert all((first[name] == second[name]).all() for name in first)
    Image.new("RGB", (32, 32), "red").save(workplace / "a.png")
    words = ("a.png", "--labels", "star, heart", "--model", "hub", "--json")
    result = diffclip_command("classify", *words, cwd=workplace)
    assert json.loads(result.stdout)["label"] in ("star", "heart"), result.stderr


@pytest.mark.usefixtures("trained")
def test_training_and_classify_import_no_large_packages(workplace: Path) -> None:
    """The training loop loads at most 45 of our modules, many of them kinds of attention; neither it nor
    `classify` loads large packages."""
    code = (
        "import sys, diffclip.training.loop\n"
        "print(sum(name.startswith('diffclip.') for name in sys.modules))\n"
        "from diffclip.cli.main import main\n"
        "try: main()\nexcept SystemExit as stop: assert not stop.code\n"
        "large = {'open_clip', 'transformers', 'lightning', 'matplotlib', 'pandas'}\n"
        "print(large & set(sys.modules))"
    )
    Image.new("RGB", (32, 32), "red").save(workplace / "red.png")
    words = ("classify", "red.png", "--labels", "a, b", "--model", "runs/a", "--json")
    command = [sys.executable, "-c", code, *words]
    result = subprocess.run(command, capture_output=True, text=True, cwd=workplace, timeout=300)
    assert result.returncode == 0, result.stderr
    count, answer, loaded = result.stdout.splitlines()
    assert int(count) <= 45
    assert json.loads(answer)["label"] in ("a", "b")
    assert loaded == "set()"


def test_make_scenes_reuses_scenes_drawn_before(tmp_path: Path) -> None:
    options = ("--size", 16, "--train", 2, "--val", 1, "--test", 1, "--workers", 1)
    for message in ("Drew the scenes in", "reused"):
        assert message in diffclip_command("data", "make-scenes", "set", *options, cwd=tmp_path).stdout

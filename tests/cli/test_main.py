"""The command line, much of it as a process: what it imports, what it prints, and its exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from in_process import diffclip_command
from tiny_recipe import tiny_recipe

from diffclip.cli import main as cli
from diffclip.cli import progress
from diffclip.errors import DiffCLIPError, StoppedError
from diffclip.scenes import write_scenes

COMMANDS = [
    "demo",
    "train",
    "study",
    "evaluate",
    "classify",
    "attend",
    "search",
    "explore",
    "report",
    "convert",
    "export",
    "push",
    "bench",
    "benchmark",
    "data make-scenes",
    "data make-shards",
    "data download",
]


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "diffclip.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=300,
    )


def refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2, and one plain line on stderr with the words."""
    assert result.returncode == 2, result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("diffclip: ")
    for word in words:
        assert word in lines[0]


def in_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str]:
    """Exit code and stderr of `diffclip ARGUMENTS` without a new process."""
    monkeypatch.setattr(sys, "argv", ["diffclip", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0), capsys.readouterr().err


def test_help_imports_neither_torch_nor_any_optional_group() -> None:
    code = (
        "import sys\nsys.argv = ['diffclip', '--help']\n"
        "from diffclip.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'timm', 'open_clip', 'numpy', 'PIL', 'lightning', 'matplotlib', 'pydantic', 'webdataset'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.splitlines()[-1] == "[]", result.stderr
    imported = subprocess.run(
        [sys.executable, "-c", "import sys, diffclip; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
    )
    assert imported.stdout.strip() == "False"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["diffclip", *command.split(), "--help"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    assert f"diffclip {command}" in " ".join(capsys.readouterr().out.split())


def test_version_and_unknown_words(monkeypatch, capsys) -> None:
    assert in_process(monkeypatch, capsys, "--version") == (0, "")
    for arguments in (["trian"], ["train"], ["train", "x", "--epochs", "3"], ["classify"], ["evaluate", "a"]):
        code, error = in_process(monkeypatch, capsys, *arguments)
        assert code == 2, arguments
        assert len(error.splitlines()) == 1, error


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let `diffclip demo` end with `error`."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("diffclip.demo.run_demo", fail)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (
            PermissionError(13, "Permission denied", "a.png"),
            2,
            "cannot read or write a.png: Permission denied; ",
        ),
        (OSError(28, "No space left on device"), 2, "cannot read or write: No space left on device; "),
        (DiffCLIPError("step 3: the loss is nan"), 1, "step 3: the loss is nan\n"),
        (OSError("no\nnumber"), 2, "cannot read or write: no number; "),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), 1, "a data worker died, "),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_failures_of_the_system_are_one_line(
    error: BaseException, code: int, line: str, monkeypatch, capsys
) -> None:
    failing(monkeypatch, error)
    got, told = in_process(monkeypatch, capsys, "demo")
    assert got == code
    assert told.startswith(f"diffclip: {line}")
    assert len(told.splitlines()) == 1


def test_a_configuration_that_escapes_is_one_line(monkeypatch, capsys) -> None:
    from pydantic import ValidationError

    from diffclip.config import VisionConfig

    with pytest.raises(ValidationError) as caught:
        VisionConfig(width=-1, layers="x")
    failing(monkeypatch, caught.value)
    code, told = in_process(monkeypatch, capsys, "demo")
    assert code == 2
    assert told.startswith("diffclip: VisionConfig: width: ")
    assert "; layers: " in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("error", [ValueError("ours"), RuntimeError("ours")])
def test_our_own_mistakes_keep_their_traceback(error: Exception, monkeypatch) -> None:
    failing(monkeypatch, error)
    monkeypatch.setattr(sys, "argv", ["diffclip", "demo"])
    with pytest.raises(type(error), match="ours"):
        cli.main()


@pytest.mark.parametrize("module", ["matplotlib", "lightning", "tensorboard"])
def test_the_demo_names_the_group_to_install(module: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.delitem(sys.modules, "diffclip.demo", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    code, told = in_process(monkeypatch, capsys, "demo", "--folder", str(tmp_path / "demo"))
    assert code == 2
    assert (
        told == f"diffclip: this needs {module}, which is not installed: run pip install 'diffclip[train]'\n"
    )
    assert "diffclip.demo" not in sys.modules


@pytest.mark.parametrize("module", ["pandas", "scipy", "statsmodels"])
@pytest.mark.parametrize(
    "command",
    ["evaluate CLIP-ViT-B-16 --data sets", "vlm evaluate runs/vlm --data sets --output pope.jsonl"],
)
def test_measuring_names_the_group_to_install(command: str, module: str, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert in_process(monkeypatch, capsys, *command.split()) == (
        2,
        f"diffclip: this needs {module}, which is not installed: run pip install 'diffclip[report]'\n",
    )


def test_a_stopped_demo_says_how_to_go_on(monkeypatch, capsys) -> None:
    failing(monkeypatch, StoppedError("runs/demo/CLIP: asked to stop at step 3: go on with --resume"))
    assert in_process(monkeypatch, capsys, "demo") == (
        75,
        "diffclip: runs/demo: stopped, the state is saved: the same command goes on\n",
    )


@pytest.mark.parametrize(
    ("command", "is_training"),
    [
        ("train recipe.yaml", True),
        ("vlm train --stage 1", True),
        ("-- vlm train --stage 1", True),
        ("classify train a.png", False),
        ("evaluate train", False),
    ],
)
def test_only_a_training_ends_early_with_code_75(command: str, is_training: bool) -> None:
    code = "import signal, sys, diffclip.cli; sys.exit(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
    process = subprocess.run([sys.executable, "-c", code, *command.split()], timeout=60)
    assert process.returncode == (0 if is_training else 1)


def test_the_time_left_is_that_of_the_kind(monkeypatch, capsys) -> None:
    clock = iter([0.0, 100.0, 120.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.showing_progress("model", {"images": 4}) as advance:
        advance("texts", 10, 10)
        advance("images", 1, None)  # after 20 s
    assert capsys.readouterr().err == " 25 %, 60 s left: images: model\n"


def test_output_that_nothing_takes() -> None:
    command = [sys.executable, "-m", "diffclip", "--help"]
    left = subprocess.run(
        ["sh", "-c", 'exec "$@" | true', "sh", *command], capture_output=True, text=True, timeout=60
    )
    assert left.stderr == ""
    closed = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], capture_output=True, text=True, timeout=60
    )
    assert (closed.returncode, closed.stderr) == (0, "")
    if not Path("/dev/full").exists():
        pytest.skip("needs a device that is always full")
    with open("/dev/full", "w") as full:
        refused(
            subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60),
            "No space left on device",
        )


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes, and a recipe over them."""
    folder = tmp_path_factory.mktemp("work")
    write_scenes(folder / "scenes", size=32, train=24, val=12, test=12, seed=0)
    data = {"train": "scenes/captions/train", "val": "scenes/captions/val"}
    recipe = tiny_recipe(size=32, context=16, epochs=1, data=data)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    return folder


@pytest.fixture(scope="module")
def trained(workplace: Path) -> Path:
    """A run made by the real command."""
    result = run("train", "tiny.yaml", "seed=3", "--run", "runs/a", cwd=workplace)
    assert result.returncode == 0, result.stderr
    assert "3 steps, 24 samples" in result.stdout
    return workplace / "runs" / "a"


def test_train_leaves_a_run_with_its_report(trained: Path) -> None:
    assert {"recipe.yaml", "metrics.jsonl", "validation.jsonl", "checkpoints", "report.html"} <= {
        path.name for path in trained.iterdir()
    }
    assert yaml.safe_load((trained / "recipe.yaml").read_text())["seed"] == 3


def test_a_run_goes_on_without_its_recipe_and_further(trained: Path, workplace: Path) -> None:

    copy = trained.parent / "copy"
    shutil.copytree(trained, copy, symlinks=True)
    result = diffclip_command("train", "--resume", "--run", "runs/copy", "epochs=2", cwd=workplace)
    assert result.returncode == 0, result.stderr
    assert "going on after step 3 of 6" in result.stderr
    assert "6 steps, 48 samples" in result.stdout
    result = diffclip_command("train", "--resume", "--run", "runs/absent", cwd=workplace)
    refused(result, "runs/absent holds no run to go on with: give its recipe")


def test_a_trained_run_is_evaluated_and_converted_there_and_back(trained: Path, workplace: Path) -> None:
    result = diffclip_command(
        *("evaluate", "runs/a", "--task", "retrieval", "--data", "scenes/captions", "--output", "r.jsonl"),
        cwd=workplace,
    )
    assert result.returncode == 0, result.stderr
    records = [json.loads(line) for line in (workplace / "r.jsonl").read_text().splitlines()]
    assert {record["metric"] for record in records} == {
        *(f"{direction}_retrieval_recall@{k}" for direction in ("image", "text") for k in (1, 5, 10)),
        "mean_recall",
    }
    assert {(record["seed"], record["split"], record["count"]) for record in records} == {
        (3, "test", 60),
        (3, "test", 12),
    }

    assert diffclip_command("convert", "runs/a", "published.pt", cwd=workplace).returncode == 0
    assert diffclip_command("convert", "published.pt", "back", cwd=workplace).returncode == 0
    from safetensors.torch import load_file

    first, second = (
        load_file(path / "model.safetensors") for path in (trained / "checkpoints/last", workplace / "back")
    )
    assert first.keys() == second.keys()
    assert all((first[name] == second[name]).all() for name in first)


def test_a_folder_with_only_a_published_file_classifies(trained: Path, workplace: Path) -> None:
    assert diffclip_command("convert", "runs/a", "hub/checkpoint_best.pt", cwd=workplace).returncode == 0
    pictures = workplace / "pictures"
    pictures.mkdir()
    from PIL import Image

    from diffclip.scenes import draw_scene

    Image.fromarray(draw_scene(0).image).save(pictures / "a.png")
    result = diffclip_command(
        "classify", "pictures", "--labels", "star, heart", "--model", "hub", "--json", cwd=workplace
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[0])["label"] in ("star", "heart")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "tiny.yaml", "epoch=2"], ["unknown recipe key 'epoch'", "'epochs'"]),
        (["train", "tiny.yaml", "data.train=absent"], ["absent"]),
        (["evaluate", "runs/a", "--data", "absent/set"], ["absent/set"]),
        (["classify", "tiny.yaml", "--labels", "a, b", "--model", "runs/a"], ["tiny.yaml"]),
        (["convert", "CLIP-ViT-B-16", "x"], ["no weights"]),
        (["report", "scenes/questions", "--output", "r.html"], ["scenes/questions"]),
        (["data", "make-scenes", "s", "--size", "4"], ["4"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], words: list[str], trained: Path, workplace: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(workplace)
    before = sorted(workplace.rglob("*"))
    code, error = in_process(monkeypatch, capsys, *arguments)
    assert code == 2, error
    assert len(error.splitlines()) == 1, error
    assert error.startswith("diffclip: ")
    for word in words:
        assert word in error
    assert sorted(workplace.rglob("*")) == before


def test_bad_input_in_a_real_process(trained: Path, workplace: Path) -> None:
    (workplace / "empty.png").touch()
    refused(
        run("classify", "empty.png", "--labels", "a, b", "--model", "runs/a", cwd=workplace),
        "empty.png",
        "empty",
    )
    refused(diffclip_command("train", "tiny.yaml", "--run", "runs/a", cwd=workplace), "--resume")
    (workplace / "evil.pt").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    words = ("evaluate", "evil.pt", "--data", "scenes/captions")
    refused(diffclip_command(*words, cwd=workplace), "evil.pt")
    assert not (workplace / "ran").exists()

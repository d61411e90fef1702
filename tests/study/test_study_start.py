"""What a part of the studies begins with: packages that are there, and changes that are to some study."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.study_start import NEEDED, changes_of
from diffclip.errors import InputError
from diffclip.study.recipe import read_study

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"


def _file(module: str) -> Path | None:
    path = SOURCES.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _imports(body: list[ast.stmt]) -> Iterator[str]:
    """What is imported when the module is, but for type checkers."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test):
            yield from _imports([*node.body, *node.orelse])


def test_everything_that_a_study_imports_is_looked_for_first() -> None:
    todo = [f"diffclip.study.{file.stem}" for file in (SOURCES / "diffclip" / "study").glob("[!_]*.py")]
    todo.append("diffclip.report.save")
    seen, found = set(), set()
    while todo:
        *outer, _ = parts = todo.pop().split(".")
        for module in (".".join(parts[: length + 1]) for length in range(len(outer) + 1)):
            file = _file(module)
            if file is None or module in seen:
                continue
            seen.add(module)
            for name in _imports(ast.parse(file.read_text()).body):
                if name.startswith("diffclip"):
                    todo.append(name)
                else:
                    found.add(name.split(".")[0])
    assert "diffclip.training.loop" in seen
    # comes with pydantic
    assert found - sys.stdlib_module_names - {"pydantic_core"} <= NEEDED.keys()


def test_a_bare_machine_is_told_what_is_missing_in_a_line(tmp_path: Path) -> None:
    words = [
        "-S",
        "-m",
        "benchmarks.study",
        "--output",
        str(tmp_path / "out"),
    ]  # -S: without installed packages
    ended = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, env={})
    assert ended.returncode == 2
    for name in ("pydantic", "open_clip_torch", "pillow", "lightning"):
        assert name in ended.stderr
    assert ended.stderr.endswith("into a folder that PYTHONPATH names\n")
    assert ended.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_change_is_to_one_study_or_to_those_that_have_its_key(study_file: Callable[..., Path]) -> None:
    studies = {"a": read_study(study_file()), "b": read_study(study_file(sweep=None))}
    words = ["a:models.suite=quick", "sweep.seed=7", "title=x:y", "b:sweep.seed=8"]
    assert changes_of(studies, words) == {
        "a": ["models.suite=quick", "sweep.seed=7", "title=x:y"],
        "b": ["title=x:y", "sweep.seed=8"],
    }
    for word, told in (
        ("c:title=x", "unknown study 'c'"),
        ("modls.suite=quick", "unknown study key 'modls': did you mean 'models'"),
        ("ablations.seeds=[0]", r"--set ablations.seeds=\[0\]: no study has ablations"),
    ):
        with pytest.raises(InputError, match=told):
            changes_of(studies, [word])

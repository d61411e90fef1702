"""What a run folder tells about how it came about."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import diffclip
from diffclip import InputError
from diffclip.training.about import (
    ABOUT_FILE,
    add_start,
    describe_start,
    end_start,
    read_starts,
    without_credentials,
)
from diffclip.training.recipe import Recipe

CORPUS = {
    "fingerprint": "3fa9",
    "samples": 900,
    "steps_per_epoch": 7,
    "sources": [("https://me:pa55@host/{0..5}.tar?sig=abc", 6, 800, 1.0), (["a.tar"], ["a.tar"], 100, 0.5)],
}
HARDWARE = {"world": 2, "nodes": 1, "strategy": "ddp"}


def test_a_start_is_described(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "argv", ["/bin/diffclip", "train", "r.yaml", "data.train=s3://KEY:SECRET@b/{0..3}.tar"]
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("TORCH_HOME", "/x")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("MY_SECRET", "never")
    facts = describe_start(recipe, CORPUS, HARDWARE, 12)
    assert (facts["step"], facts["steps"], facts["epochs"]) == (12, 7 * recipe.epochs, recipe.epochs)
    assert facts["command"].endswith("train r.yaml 'data.train=s3://***@b/{0..3}.tar'")
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["versions"]["diffclip"] == diffclip.__version__
    assert facts["machine"]["cores"] >= 1
    assert facts["machine"]["cpu"]
    assert facts["machine"]["memory"] > 2**28
    assert len(facts["gpus"]) == torch.cuda.device_count()
    assert facts["processes"] == HARDWARE
    assert facts["data"]["sources"] == [
        {"spec": "https://***@host/{0..5}.tar?sig=***", "shards": 6, "samples": 800, "weight": 1.0},
        {"spec": ["a.tar"], "shards": 1, "samples": 100, "weight": 0.5},
    ]
    environment = facts["environment"]
    assert {"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO", "TORCH_HOME": "/x"}.items() <= environment.items()
    assert "never" not in json.dumps(facts)
    assert facts["job"]["SLURM_JOB_ID"] == "77"


def test_starts_are_a_list_and_the_last_one_ends(recipe: Recipe, tmp_path: Path) -> None:
    assert read_starts(tmp_path) == []
    end_start(tmp_path, "finished", 5)
    assert not (tmp_path / ABOUT_FILE).exists()
    add_start(tmp_path, describe_start(recipe, {}, {}, 0))
    end_start(tmp_path, "InputError: https://me:pa55@host is gone", 5)
    add_start(tmp_path, describe_start(recipe, CORPUS, HARDWARE, 5))
    first, second = read_starts(tmp_path)
    assert (first["step"], first["steps"], second["step"]) == (0, None, 5)
    assert (first["ended"]["how"], first["ended"]["step"]) == ("InputError: https://***@host is gone", 5)
    assert "ended" not in second


@pytest.mark.parametrize("damage", ['{"starts": [{"step"', "[]", '{"starts": 3}', "", "\udcff", "null"])
def test_a_damaged_file_is_replaced(damage: str, tmp_path: Path) -> None:
    (tmp_path / ABOUT_FILE).write_bytes(damage.encode("utf-8", "surrogateescape"))
    assert read_starts(tmp_path) == []
    add_start(tmp_path, {"step": 3, "data": {"shards": Path("x")}})
    assert [start["step"] for start in read_starts(tmp_path)] == [3]


def test_a_place_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / ABOUT_FILE).mkdir()
    with pytest.raises(InputError, match=r"cannot write .*about\.json"):
        add_start(tmp_path, {})


def in_a_tree(tree: Path, program: str) -> str:
    """What `program` prints with a copy of the package in `tree`."""
    package = tree / "src" / "diffclip"
    shutil.copytree(Path(diffclip.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    return subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(tree / "src"), "PATH": "/usr/bin:/bin", "HOME": str(tree)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


GIT_STATE = """
import json, subprocess, sys
from pathlib import Path
import diffclip
from diffclip.training.about import _git_state

package = Path(diffclip.__file__).parent

def git(*words):
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=package, check=True,
                   capture_output=True)

found = [_git_state()]
git("init", "-b", "trunk", str(package.parents[1]))
found.append(_git_state())
git("add", "__init__.py", "errors.py")
git("commit", "-m", "first")
found.append(_git_state())
(package / "errors.py").write_text((package / "errors.py").read_text() + "\\n")
found.append(_git_state())
print(json.dumps(found))
"""


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_state_of_the_source_tree(tmp_path: Path) -> None:
    bare, untracked, clean, changed = json.loads(in_a_tree(tmp_path, GIT_STATE))
    assert bare is None
    # the package lies in a tree that knows nothing of it
    assert untracked is None
    assert (clean["branch"], clean["dirty"], len(clean["commit"])) == ("trunk", False, 40)
    assert changed == clean | {"dirty": True}


def test_without_git_there_is_no_state(recipe: Recipe, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_start(recipe, {}, {}, 0)["git"] is None


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("https://me:p@55@host/a.tar?e=1&X-Amz-Signature=ab%2F#x", "https://***@host/a.tar?e=***&X-Amz-Signature=***#x"),
        ("'data.train=s3://KEY:SECRET@b/a.tar' epochs=3", "'data.train=s3://***@b/a.tar' epochs=3"),
        ("pipe:curl -H 'Authorization: Bearer abc' https://h/a", "pipe:curl -H 'Authorization: Bearer ***' https://h/a"),
        ("pipe:curl -u me:pw https://h/a", "pipe:curl -u me:*** https://h/a"),
        ("AWS_SECRET_ACCESS_KEY=abc aws s3 cp s3://b/a -", "AWS_SECRET_ACCESS_KEY=*** aws s3 cp s3://b/a -"),
        ("--token abc --password=de", "--token *** --password=***"),
        ("X-Api-Key: abc", "X-Api-Key: ***"),
    ],
)  # fmt: skip
def test_credentials_are_hidden(text: str, hidden: str) -> None:
    assert without_credentials(text) == hidden
    assert without_credentials({"a": [text, 3], "b": None}) == {"a": [hidden, 3], "b": None}


@pytest.mark.parametrize(
    "text",
    ["hf://datasets/o/n@main/{0..5}.tar", "tokenizer=a a token of thanks", "/a/b@c/d.tar", "gs://b/a.tar"],
)
def test_the_rest_stays(text: str) -> None:
    assert without_credentials(text) == text

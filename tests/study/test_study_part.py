"""A part of the studies on a machine that keeps nothing: what it packs, what it goes on from, and in which order."""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_study import ABLATIONS, write_finished

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import study as program
from benchmarks.study import PACK, Part
from diffclip.errors import InputError
from diffclip.study.folder import claim_study
from diffclip.study.plan import grid_runs
from diffclip.study.recipe import read_study


def test_what_is_finished_is_packed_whole_and_unpacked(
    study_file: Callable[..., Path], tmp_path: Path
) -> None:
    study = read_study(study_file())
    (tmp_path / "a").mkdir()
    part = Part(tmp_path / "a", tmp_path / "work", 60)
    out = part.results("tiny")
    claim_study(study, out)
    first, second = grid_runs(study, {})[:2]
    write_finished(study, first, out, 0.5)
    (out / "models" / ".1234.tmp").mkdir()
    (out / "models" / ".1234.tmp" / "cost.json").write_text("{}")
    (out / str(second)).mkdir()
    part.pack()
    assert not (tmp_path / "a" / PACK).exists()  # not yet
    part.pack(at_once=True)
    with tarfile.open(tmp_path / "a" / PACK) as tar:
        names = sorted(tar.getnames())
    kept = ("cost.json", "recipe.yaml", "validation.jsonl")
    assert names == [*(f"tiny/{first}/{name}" for name in kept), "tiny/study.yaml"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == [PACK]

    again = Part(tmp_path / "b", tmp_path / "again", 60)
    again.unpack(tmp_path / "a")
    assert (again.results("tiny") / str(first) / "cost.json").is_file()
    (tmp_path / "a" / PACK).write_bytes((tmp_path / "a" / PACK).read_bytes()[:-200])
    for wrong in ("a", "none"):
        with pytest.raises(InputError, match=r"study.tgz cannot be unpacked"):
            Part(tmp_path / "b", tmp_path / wrong / "work", 60).unpack(tmp_path / wrong)


def _run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["study", *words])
    with pytest.raises(SystemExit) as ended:
        program.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--studies", "study_gpo"], "unknown recipe 'study_gpo': did you mean 'study_gpu'"),
        (["--done", "nowhere"], "nowhere/study.tgz cannot be unpacked"),
        (["--set", "chnge.epochs=1"], "unknown study key 'chnge'"),
        (["--minutes", "0"], "--minutes 0 is no time"),
        (["--workers", "0"], "--workers 0"),
    ],
)
def test_wrong_words_are_told_with_exit_code_2(
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _run(["--device", "cpu", "--output", str(tmp_path / "out"), *words], monkeypatch) == 2
    assert told in capsys.readouterr().err


def test_every_studys_models_come_before_the_ablations(
    study_file: Callable[..., Path],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seeds = {"seeds": [0], "suite": "brief"}
    file = study_file(sweep=None, ablations=ABLATIONS)
    other = tmp_path / "other.yaml"
    other.write_text(file.read_text())
    words = ["--device", "cpu", "--data", str(data), "--output", str(tmp_path / "out"), "--minutes", "60"]
    words += ["--studies", str(file), str(other), "--attention", "sdpa", "--set", "change.epochs=1"]
    words += [f"models.{key}={value}" for key, value in seeds.items()]
    assert _run(words, monkeypatch) == 0
    started = [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if ": started" in line]
    models = ["models/CLIP-s0", "models/DiffCLIP-s0"]
    assert started == [*models, *models, *["ablations/DiffCLIP-no-norm-s0"] * 2]
    with tarfile.open(tmp_path / "out" / PACK) as tar:
        assert len([name for name in tar.getnames() if name.endswith("cost.json")]) == 6
        recipe = tar.extractfile(f"other/{models[1]}/recipe.yaml")
        assert recipe is not None
        assert b"attention_backend: sdpa" in recipe.read()

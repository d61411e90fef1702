import json
import os
from pathlib import Path

import numpy as np
import pytest
from odd_shards import write_odd_shards

from diffclip.cli import data
from diffclip.data.check import DISTANCE, Check, check, near_groups
from diffclip.data.corpus import Corpus


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_odd_shards(tmp_path_factory.mktemp("odd") / "shards")


@pytest.fixture(scope="module")
def found(odd: Path) -> Check:
    return check(Corpus(str(odd)))


def keys(names: list[str]) -> list[str]:
    return [name.rpartition(":")[2] for name in names]


def test_check_finds_every_odd_sample(found: Check, odd: Path) -> None:
    assert (found.shards, found.usable, found.read, found.whole) == (4, 44, 44, 42)
    skipped = [str(fault).removeprefix(f"{odd}/") for fault in found.skipped]
    assert skipped == ["3.tar is empty (0 bytes)", "1.tar:bare has no caption", "1.tar:blind has no image"]
    assert keys([fault.name for fault in found.images_broken]) == ["cut"]
    assert [fault.reason for fault in found.captions_broken] == ["has a caption that is not UTF-8 text"]
    assert (found.shorter_edge["min"], found.shorter_edge["median"], found.small) == (40, 90, 42)
    # one of the 42 has two captions
    assert found.captions == 43
    # the start token, four words 25 times, two words and the end token
    assert (found.tokens["min"], found.tokens["max"]) == (4, 104)
    assert found.truncated == 1
    assert [keys(group) for group in found.exact] == [["s01", "twin"]]
    assert [keys(group) for group in found.near] == [["s02", "small", "worse"]]


def test_near_groups_match_a_comparison_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    samples = np.zeros(600, [("content", "u8"), ("look", "u8")])
    samples["content"] = np.arange(600)
    samples["look"][:300] = rng.integers(0, 2**63, 300, dtype=np.uint64)
    for i in range(300, 600):
        flips = rng.choice(64, rng.integers(1, 7), replace=False)
        samples["look"][i] = samples["look"][rng.integers(i)] ^ np.uint64(sum(1 << int(bit) for bit in flips))
    distances = np.bitwise_count(samples["look"][:, None] ^ samples["look"])
    label = np.arange(600)
    for _ in range(600):
        new = np.array([label[row <= DISTANCE].min() for row in distances])
        if np.array_equal(new, label):
            break
        label = new
    expected = {tuple(np.flatnonzero(label == value).tolist()) for value in set(label.tolist())}
    assert {tuple(group.tolist()) for group in near_groups(samples)} == {g for g in expected if len(g) > 1}


def test_check_is_the_same_with_workers_and_can_draw_a_sample(found: Check, odd: Path) -> None:
    counts: list[int] = []
    assert check(Corpus(str(odd)), workers=2, advance=counts.append) == found
    assert sum(counts) == 44
    first, again = (check(Corpus(str(odd)), sample=10) for _ in range(2))
    assert (first.usable, first.read) == (44, 10)
    assert first == again


def test_the_command_prints_a_table_and_writes_a_file(odd, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    output = tmp_path / "out" / "check.json"
    data.check([str(odd)], output=output, workers=1)
    lines = capsys.readouterr().out.splitlines()
    answers = dict(line.strip().split("   ", 1) for line in lines if "   " in line.strip())
    answers = {name: value.strip() for name, value in answers.items()}
    assert answers["faults in the shards"] == "3"
    assert answers["can be trained on"] == "42 (95.5 %)"
    assert answers["unreadable images"] == "1 (2.27 %)"
    assert answers["same pixels as another"] == "1 (2.38 %), groups: 1"
    assert answers["looks like another"] == "2 (4.76 %), groups: 1"
    assert answers["shorter edge"].endswith("below 224: 42 (100 %)")
    assert f"  {odd}/3.tar is empty (0 bytes)" in lines
    assert f"  {odd}/1.tar:bare has no caption" in lines
    assert lines[-1] == f"wrote {output}"
    assert json.loads(output.read_text())["whole"] == 42
    # nothing is written beside the data
    assert sorted(os.listdir(odd)) == ["0.tar", "1.tar", "2.tar", "3.tar"]

import json
import os
from pathlib import Path

import numpy as np
import pytest
from made_sets import encoded, write_shard_of
from PIL import Image

from diffclip.cli import data
from diffclip.data.check import Check, check
from diffclip.data.pairs import Pairs
from diffclip.errors import InputError


def jpeg(image: Image.Image, quality: int = 90) -> bytes:
    return encoded(image, "JPEG", quality=quality)


def smooth_image(number: int, size: tuple[int, int] = (120, 90)) -> Image.Image:
    """Create a smooth image; each number gives another one."""
    values = np.random.default_rng(number).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    return Image.fromarray(values).resize(size, Image.Resampling.BICUBIC)


def plain(prefix: str, numbers: range) -> dict[str, dict[str, bytes]]:
    return {f"{prefix}{n:02d}": {"jpg": jpeg(smooth_image(n)), "txt": b"a picture, plainly"} for n in numbers}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write three shards of 20, 21 and 3 samples that have an image and a caption, and a broken shard."""
    folder, second = tmp_path_factory.mktemp("odd") / "shards", smooth_image(2)
    samples = {
        "bare": {"jpg": jpeg(smooth_image(50))},
        "blind": {"txt": b"nothing to see"},
        "both": {"png": encoded(smooth_image(51)), "txt": b"one line\nand more"},
        "cut": {"jpg": jpeg(smooth_image(52))[:900], "txt": b"half of it"},
        "latin": {"jpg": jpeg(smooth_image(53)), "txt": b"caf\xe9 au lait"},
        "long": {"jpg": jpeg(smooth_image(54, (300, 90))), "txt": b"a very long caption " * 25 + b"the end"},
        "small": {"jpg": jpeg(second.resize((60, 45))), "txt": b"a small photo"},
        "twin": {"jpg": jpeg(smooth_image(1)), "txt": b"a photo"},
        "white": {"png": encoded(Image.new("RGB", (40, 40), "white")), "txt": b"a cloud"},
        "whiter": {"png": encoded(Image.new("RGB", (41, 40), (250, 250, 250))), "txt": b"a cloud"},
        # the pixels of `white` as bytes, but another shape
        "wide": {"png": encoded(Image.new("RGB", (50, 32), "white")), "txt": b"a cloud"},
        "worse": {"jpg": jpeg(second, quality=30), "txt": b"a photo"},
    }
    write_shard_of(folder / "0.tar", plain("s", range(20)).items())
    write_shard_of(folder / "1.tar", (samples | plain("t", range(60, 71))).items())
    write_shard_of(folder / "2.tar", plain("u", range(80, 83)).items())
    (folder / "3.tar").touch()
    return folder


@pytest.fixture(scope="module")
def found(odd: Path) -> Check:
    return check(Pairs(str(odd)))


def keys(names: list[str]) -> list[str]:
    return [name.rpartition(":")[2] for name in names]


def test_check_finds_every_odd_sample(found: Check, odd: Path) -> None:
    assert (found.shards, found.usable, found.read, found.whole) == (4, 44, 44, 42)
    skipped = [str(fault).removeprefix(f"{odd}/") for fault in found.skipped]
    assert skipped == ["3.tar is empty (0 bytes)", "1.tar:bare has no caption", "1.tar:blind has no image"]
    assert keys([fault.name for fault in found.images_broken]) == ["cut"]
    assert [fault.reason for fault in found.captions_broken] == ["has a caption that is not UTF-8 text"]
    assert (found.shorter_edge["min"], found.shorter_edge["median"], found.small) == (32, 90, 42)
    # one of the 42 has two captions
    assert (found.captions, found.several) == (43, 1)
    # the start token, four words 25 times, two words and the end token
    assert (found.tokens["min"], found.tokens["max"]) == (4, 104)
    assert found.truncated == 1
    assert [keys(group) for group in found.exact] == [["s01", "twin"]]


def test_check_is_the_same_with_workers_and_can_draw_a_sample(found: Check, odd: Path) -> None:
    counts: list[int] = []
    counted = check(Pairs(str(odd)), workers=2, progress=lambda what, done, total: counts.append(done))
    assert counted == found
    assert sum(counts) == 44
    first, again = (check(Pairs(str(odd)), sample=10) for _ in range(2))
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
    assert answers["shorter edge"].endswith("below 224: 42 (100 %)")
    assert f"  {odd}/3.tar is empty (0 bytes)" in lines
    assert f"  {odd}/1.tar:bare has no caption" in lines
    assert lines[-1] == f"wrote {output}"
    assert json.loads(output.read_text())["whole"] == 42
    # nothing is written beside the data
    assert sorted(os.listdir(odd)) == ["0.tar", "1.tar", "2.tar", "3.tar"]


def test_strict_ends_with_an_error_if_there_are_faults(odd: Path) -> None:
    with pytest.raises(InputError, match=r"5 faults in .*: mend or remove what is named"):
        data.check([str(odd)], workers=1, strict=True)

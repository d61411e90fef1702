from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from diffclip.config import PreprocessConfig
from diffclip.data.kept_pictures import KeptPictures
from diffclip.data.pictures import PictureBatch, evaluation_batches, keeping
from diffclip.data.samples import Fault, Transform
from diffclip.data.shards import Shards
from diffclip.data.sources import Source
from diffclip.data.transforms import eval_transform
from diffclip.errors import InputError
from diffclip.evaluation.corruptions import CORRUPTIONS, corrupted

WriteShard = Callable[..., Path]
SIZE = 8
TRANSFORM = eval_transform(SIZE, PreprocessConfig())


class Counted(Shards):
    """Shards that count how often a picture is read."""

    read = 0

    def picture(self, i: int) -> Image.Image:
        self.read += 1
        return super().picture(i)


@pytest.fixture
def shards(tmp_path: Path, write_shard: WriteShard) -> Counted:
    return Counted([write_shard(tmp_path / "0.tar", 11)])


@pytest.fixture
def kept(tmp_path: Path) -> KeptPictures:
    return KeptPictures(tmp_path / "kept", 10_000_000)


def batches_of(
    source: Source,
    transform: Transform,
    kept: KeptPictures | None,
    indices: range = range(10, -1, -1),
    faults: list[Fault] | None = None,
) -> list[PictureBatch]:
    with keeping(kept):
        return list(evaluation_batches(source, indices, transform, 4, [] if faults is None else faults))


def same(a: list[PictureBatch], b: list[PictureBatch]) -> bool:
    return [x.positions for x in a] == [y.positions for y in b] and all(
        torch.equal(x.images, y.images) for x, y in zip(a, b, strict=True)
    )


def test_the_second_pass_reads_nothing_and_gives_the_same(shards: Counted, kept: KeptPictures) -> None:
    known = batches_of(shards, TRANSFORM, None)
    shards.read = 0
    with torch.inference_mode():
        assert same(batches_of(shards, TRANSFORM, kept), known)
        assert shards.read == 11
        assert same(batches_of(shards, TRANSFORM, kept), known)
        # as another process finds it
        assert same(batches_of(shards, TRANSFORM, KeptPictures(kept.folder, 0)), known)
    assert shards.read == 11
    assert same(batches_of(shards, TRANSFORM, None), known)
    assert shards.read == 22


def test_each_choice_of_pictures_and_each_transform_has_its_own(shards: Counted, kept: KeptPictures) -> None:
    transforms = [
        TRANSFORM,
        eval_transform(12, PreprocessConfig()),
        eval_transform(SIZE, PreprocessConfig(resize=10)),
        eval_transform(SIZE, PreprocessConfig(interpolation="bicubic")),
        *(corrupted(TRANSFORM, name, 5) for name in CORRUPTIONS),
        corrupted(TRANSFORM, "noise", 4),
        corrupted(TRANSFORM, "noise", 5, seed=1),
    ]
    for _ in range(2):
        for transform in transforms:
            for indices in (range(11), range(5)):
                found = batches_of(shards, transform, kept, indices)
                assert same(found, batches_of(shards, transform, None, indices))
    assert len(list(kept.folder.glob("*/pixels"))) == 2 * len(transforms)


def test_statistics_are_no_part_of_what_is_kept(shards: Counted, kept: KeptPictures) -> None:
    other = eval_transform(SIZE, PreprocessConfig(mean=(0.5, 0.5, 0.5), std=(0.1, 0.2, 0.3)))
    batches_of(shards, TRANSFORM, kept)
    shards.read = 0
    found = batches_of(shards, other, kept)
    assert shards.read == 0
    assert same(found, batches_of(shards, other, None))


def test_a_changed_source_is_read_again(
    shards: Counted, kept: KeptPictures, write_shard: WriteShard, tmp_path: Path
) -> None:
    batches_of(shards, TRANSFORM, kept)
    changed = Counted([write_shard(tmp_path / "0.tar", 11, start=3)])
    assert same(batches_of(changed, TRANSFORM, kept), batches_of(changed, TRANSFORM, None))


def test_no_more_than_the_limit_is_kept(shards: Counted, tmp_path: Path) -> None:
    kept = KeptPictures(tmp_path / "kept", 11 * 3 * SIZE * SIZE)
    batches_of(shards, TRANSFORM, kept)
    batches_of(shards, corrupted(TRANSFORM, "blur", 1), kept)
    assert len(list(kept.folder.glob("*/pixels"))) == 1
    shards.read = 0
    batches_of(shards, TRANSFORM, kept)
    assert shards.read == 0
    batches_of(shards, corrupted(TRANSFORM, "blur", 1), kept)
    assert shards.read == 11


def test_a_set_with_a_broken_picture_is_read_each_time(
    tmp_path: Path, write_shard: WriteShard, kept: KeptPictures
) -> None:
    shards = Counted([write_shard(tmp_path / "0.tar", 11, changes={3: {"jpg": b"x"}})])
    for _ in range(2):
        faults: list[Fault] = []
        found = batches_of(shards, TRANSFORM, kept, faults=faults)
        assert [fault.name for fault in faults] == [shards.name(3)]
        assert same(found, batches_of(shards, TRANSFORM, None))
    assert not list(kept.folder.rglob("pixels"))
    broken = Shards([write_shard(tmp_path / "1.tar", 2, changes={n: {"jpg": b"x"} for n in range(2)})])
    with pytest.raises(InputError, match=r"every picture in .* is broken"):
        batches_of(broken, TRANSFORM, kept, range(2))


def test_what_cannot_be_kept_is_read(shards: Counted, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    kept = KeptPictures(tmp_path / "file", 10_000_000)
    assert same(batches_of(shards, TRANSFORM, kept), batches_of(shards, TRANSFORM, None))


def test_a_transform_that_is_not_known_keeps_nothing(shards: Counted, kept: KeptPictures) -> None:
    def plain(picture: Image.Image) -> Tensor:
        return TRANSFORM(picture) * 2

    assert same(batches_of(shards, plain, kept), batches_of(shards, plain, None))
    assert not kept.folder.exists()

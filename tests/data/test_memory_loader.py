from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from given import tokenize
from made_sets import write_picture
from PIL import Image

from diffclip.config import OPENAI_MEAN, OPENAI_STD, PreprocessConfig
from diffclip.data import memory
from diffclip.data.corpus import Corpus
from diffclip.data.images import read_pixels
from diffclip.data.loader import Batch, CaptionLoader
from diffclip.data.memory import MemoryLoader, resized_crops
from diffclip.data.transforms import TrainTransform
from diffclip.errors import InputError

WriteShard = Callable[..., Path]
OPENAI = PreprocessConfig(mean=OPENAI_MEAN, std=OPENAI_STD, interpolation="bicubic")


def same(a: Batch, b: Batch) -> bool:
    return (
        (a.keys, a.faults) == (b.keys, b.faults)
        and torch.equal(a.images, b.images)
        and torch.equal(a.tokens, b.tokens)
    )


def test_batches_are_those_of_the_loader(tmp_path: Path, write_shard: WriteShard) -> None:
    path = write_shard(tmp_path / "0.tar", 23, changes={3: {"jpg": b"broken"}, 5: {"txt": b"one\n"}})
    corpus = Corpus(SimpleNamespace(shards=str(path), weight=1.5))
    transform = TrainTransform(8, OPENAI, (0.3, 1.0), flip=0.5)
    options = {"batch_size": 6, "seed": 4, "rank": 1, "world": 2}
    kept = MemoryLoader(corpus, transform, tokenize, **options)
    loader = CaptionLoader(corpus, transform, tokenize, **options)
    for name in ("samples", "batches_per_epoch", "dropped", "faults", "corpus"):
        assert getattr(kept, name) == getattr(loader, name)
    for epoch, start in ((0, 0), (1, 2)):
        pairs = list(zip(kept.epoch(epoch, start), loader.epoch(epoch, start), strict=True))
        assert len(pairs) == loader.batches_per_epoch - start
        assert all(same(ours, theirs) for ours, theirs in pairs)


def test_data_that_is_read_in_windows_or_all_broken_or_too_large(
    tmp_path: Path, write_shard: WriteShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    transform = TrainTransform(8, OPENAI)
    path = write_shard(tmp_path / "0.tar", 3, changes={n: {"jpg": b"x"} for n in range(3)})
    with pytest.raises(InputError, match=r"leave data\.window out"):
        MemoryLoader(Corpus(path, window=1), transform, tokenize, 2, 0)
    with pytest.raises(InputError, match="every image in"):
        MemoryLoader(Corpus(path), transform, tokenize, 2, 0)
    monkeypatch.setattr(memory, "_memory_of", lambda device: 3 * 10 * 12 * 3 - 1)
    with pytest.raises(InputError, match=r"3 images padded to 10×12 take .* --edge, or data\.memory=false"):
        MemoryLoader(Corpus(write_shard(path, 3)), transform, tokenize, 2, 0)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_crops_at_once_are_those_one_by_one(tmp_path: Path, interpolation: str) -> None:
    transform = TrainTransform(24, PreprocessConfig(interpolation=interpolation), (0.1, 1.0), flip=0.5)
    images, sizes = torch.zeros(6, 60, 90, 3, dtype=torch.uint8), []
    for i, size in enumerate(((90, 60), (40, 60), (33, 20), (90, 8), (24, 24), (70, 55))):
        small = Image.open(write_picture(tmp_path / f"{i}.png", i, (6, 5)))
        small.resize(size, Image.Resampling.BICUBIC).save(tmp_path / f"{i}.png")
        pixels = read_pixels((tmp_path / f"{i}.png").read_bytes())
        images[i, : size[1], : size[0]] = pixels.permute(1, 2, 0)
        sizes.append((size[1], size[0]))
    chosen = [i % 6 for i in range(48)]
    crops = [transform.draw(seed, *sizes[i]) for seed, i in enumerate(chosen)]
    found = resized_crops(images, torch.tensor(chosen), torch.tensor(crops), 24, interpolation)
    for i, crop, crop_found in zip(chosen, crops, found, strict=True):
        height, width = sizes[i]
        expected = transform.cut(images[i, :height, :width].permute(2, 0, 1), crop)
        assert int((crop_found.int() - expected.int()).abs().max()) <= 2

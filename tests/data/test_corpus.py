import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from given import image_bytes, write_shard

from diffclip.data.corpus import Corpus, Sample
from diffclip.data.images import read_pixels
from diffclip.data.index import BLOCK, _open_file, open_tar
from diffclip.errors import Fault, InputError

WINDOWS = pytest.mark.parametrize("window", [None, 2])


def keys_of(corpus: Corpus) -> list[str]:
    return [sample.key for i in range(corpus.samples) if isinstance(sample := corpus.read(i), Sample)]


def reasons_of(corpus: Corpus) -> list[str]:
    return [str(fault) for i in range(corpus.samples) if isinstance(fault := corpus.read(i), Fault)]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Shards of 3, 1 and 6 samples; the last lacks two captions and an image."""
    changes = {5: {"txt": None}, 7: {"jpg": None}, 8: {"txt": b""}}
    paths = [tmp_path / f"{number}.tar" for number in range(3)]
    for path, count, start in zip(paths, (3, 1, 6), (0, 3, 4), strict=True):
        write_shard(path, count, start, changes)
    return paths


@WINDOWS
def test_samples_are_read_by_number(paths, tmp_path, window) -> None:
    corpus = Corpus(str(tmp_path), window=window)
    assert (corpus.samples, corpus.per_epoch, corpus.window) == (7, 7, window)
    pickled = pickle.dumps(corpus)
    assert keys_of(corpus) == [f"s{n:07d}" for n in (0, 1, 2, 3, 4, 6, 9)]
    sample = corpus.read(5)
    assert sample.name == f"{paths[2]}:s0000006"
    assert sample.captions == ["first 6", "second 6"]
    assert torch.equal(sample.pixels, read_pixels(image_bytes(6)))
    assert str(corpus) == f"{paths[0]} and 2 more shards"
    messages = [
        f"{paths[2]}:s{n:07d} has no {part}" for n, part in ((5, "caption"), (7, "image"), (8, "caption"))
    ]
    summary = [f"{paths[2]} holds 3 samples without an image or a caption"]
    assert [str(fault) for fault in corpus.faults] == (summary if window else messages)
    assert pickle.loads(pickled).read(5).name == sample.name


def test_corpus_takes_paths_lists_ranges_and_weighted_sources(paths: list[Path], tmp_path: Path) -> None:
    path, pair = str(paths[0]), [str(paths[1]), str(paths[2])]
    corpus = Corpus([paths[0], SimpleNamespace(shards=pair, weight=2.0)])
    sources = [tuple(source.values()) for source in corpus.sources]
    assert sources == [(path, 1, 3, 1.0), (", ".join(pair), 2, 4, 2.0)]
    assert (corpus.samples, corpus.per_epoch) == (7, 11)
    assert Corpus(SimpleNamespace(shards=[path], weight=0.4)).per_epoch == 1
    assert Corpus(f"{tmp_path}/{{0..2}}.tar").samples == 7
    with pytest.raises(InputError, match="no shards given"):
        Corpus(SimpleNamespace(shards=[], weight=1.0))


def test_a_missing_caption_key_is_a_fault_of_each_sample(tmp_path: Path) -> None:
    write_shard(tmp_path / "0.tar", 3, changes={n: {"json": b'{"alt": "a"}'} for n in range(3)})
    reasons = reasons_of(Corpus(tmp_path, caption_key="title"))
    assert len(reasons) == 3
    assert all("no key 'title' in its" in reason for reason in reasons)


@WINDOWS
def test_no_usable_sample_is_an_error(tmp_path: Path, window: int | None) -> None:
    path = write_shard(tmp_path / "0.tar", 2, changes={0: {"txt": None}, 1: {"jpg": None}})
    with pytest.raises(InputError, match=rf"no sample in {path} has an image and a caption \(first: {path}"):
        Corpus(tmp_path, window=window)


@WINDOWS
def test_a_shard_removed_or_truncated_later_gives_faults(paths, tmp_path, window) -> None:
    corpus, other = Corpus(tmp_path, window=window), Corpus(tmp_path, window=window)
    os.truncate(paths[0], int(open_tar(paths[0]).table["jpg"][1, 0]) * BLOCK)
    assert keys_of(corpus) == [f"s{n:07d}" for n in (0, 3, 4, 6, 9)]
    reasons = reasons_of(corpus)
    assert len(reasons) == 2
    assert all(str(paths[0]) in reason for reason in reasons)
    paths[0].unlink()
    _open_file.cache_clear()
    assert keys_of(other) == ["s0000003", "s0000004", "s0000006", "s0000009"]
    reasons = reasons_of(other)
    assert len(reasons) == 3
    assert all("cannot be read (" in reason and "\n" not in reason for reason in reasons)


def test_identities_change_with_the_files(paths: list[Path], tmp_path: Path) -> None:
    def identify(**options: object) -> tuple[str, str]:
        corpus = Corpus(str(tmp_path), **options)
        return corpus.identity(), corpus.order_identity()

    files, order = identify()
    assert identify(window=2)[0] == files
    assert identify(window=2)[1] != order
    # A copy of the same shards keeps the order, whatever its modification time.
    os.utime(paths[0], ns=(1, 1))
    assert identify()[0] != files
    assert identify()[1] == order
    write_shard(paths[0], 2)
    assert identify()[1] != order
    weighted = Corpus(SimpleNamespace(shards=str(tmp_path), weight=2.0))
    assert weighted.order_identity() != Corpus(str(tmp_path)).order_identity()

import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from given import image_bytes, write_shard

from diffclip.data.images import read_pixels
from diffclip.data.index import BLOCK, open_index
from diffclip.data.pairs import Pair, Pairs
from diffclip.data.tar_set import _open_file
from diffclip.errors import Fault, InputError

WINDOWS = pytest.mark.parametrize("window", [None, 2])


def keys_of(pairs: Pairs) -> list[str]:
    return [pair.key for i in range(len(pairs)) if isinstance(pair := pairs[i], Pair)]


def reasons_of(pairs: Pairs) -> list[str]:
    return [str(fault) for i in range(len(pairs)) if isinstance(fault := pairs[i], Fault)]


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
    pairs = Pairs(str(tmp_path), window=window)
    assert (len(pairs), pairs.tars.layout.per_epoch, pairs.tars.window) == (7, 7, window)
    pickled = pickle.dumps(pairs)
    assert keys_of(pairs) == [f"s{n:07d}" for n in (0, 1, 2, 3, 4, 6, 9)]
    sample = pairs[5]
    assert sample.name == f"{paths[2]}:s0000006"
    assert sample.captions.texts == ["first 6", "second 6"]
    assert torch.equal(sample.pixels, read_pixels(image_bytes(6)))
    assert str(pairs.tars) == f"{paths[0]} and 2 more shards"
    messages = [
        f"{paths[2]}:s{n:07d} has no {part}" for n, part in ((5, "caption"), (7, "image"), (8, "caption"))
    ]
    summary = [f"{paths[2]} holds 3 samples without image or caption (the first has no caption)"]
    assert [str(fault) for fault in pairs.tars.faults] == (summary if window else messages)
    assert pickle.loads(pickled)[5].name == sample.name


def test_pairs_take_paths_lists_ranges_and_weighted_sources(paths: list[Path], tmp_path: Path) -> None:
    path, pair = str(paths[0]), [str(paths[1]), str(paths[2])]
    pairs = Pairs([paths[0], SimpleNamespace(shards=pair, weight=2.0)])
    sources = [tuple(source.values()) for source in pairs.tars.sources]
    assert sources == [(path, 1, 3, 1.0), (", ".join(pair), 2, 4, 2.0)]
    assert (len(pairs), pairs.tars.layout.per_epoch) == (7, 11)
    assert Pairs(SimpleNamespace(shards=[path], weight=0.4)).tars.layout.per_epoch == 1
    assert Pairs(f"{tmp_path}/{{0..2}}.tar").tars.layout.total == 7
    with pytest.raises(InputError, match="no shards given"):
        Pairs(SimpleNamespace(shards=[], weight=1.0))
    for joined in (f"{path}::{pair[0]}", "https://me:key@host/0.tar::https://host/1.tar"):
        with pytest.raises(InputError, match=r"1\.tar names several shards: several are a list in a recipe"):
            Pairs(joined)


@WINDOWS
def test_a_shard_removed_or_truncated_later_gives_faults(paths, tmp_path, window) -> None:
    pairs, other = Pairs(tmp_path, window=window), Pairs(tmp_path, window=window)
    os.truncate(paths[0], int(open_index(paths[0]).positions[2, 0]) * BLOCK)
    assert keys_of(pairs) == [f"s{n:07d}" for n in (0, 3, 4, 6, 9)]
    reasons = reasons_of(pairs)
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
        pairs = Pairs(str(tmp_path), **options)
        return pairs.tars.identity, pairs.tars.order_identity

    files, order = identify()
    assert identify(window=2)[0] == files
    assert identify(window=2)[1] != order
    # A copy of the same shards keeps the order, whatever its modification time.
    os.utime(paths[0], ns=(1, 1))
    assert identify()[0] != files
    assert identify()[1] == order
    write_shard(paths[0], 2)
    assert identify()[1] != order
    weighted = Pairs(SimpleNamespace(shards=str(tmp_path), weight=2.0))
    assert weighted.tars.order_identity != Pairs(str(tmp_path)).tars.order_identity

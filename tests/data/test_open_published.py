import importlib.util
from collections import Counter
from pathlib import Path

import pytest
import torch
from given import refusal, write_shard
from made_sets import CIFAR_NAMES, MAKERS, write_caltech101, write_cifar10, write_sun397

from diffclip.config import PreprocessConfig
from diffclip.data.open_published import draw_split
from diffclip.data.open_set import open_set
from diffclip.data.published_sets import PUBLISHED, base_of, images_of
from diffclip.errors import InputError
from diffclip.evaluation.suite import Entry, missing_of
from diffclip.preprocess import EvalTransform

builder = pytest.importorskip("clip_benchmark.datasets.builder")
TRANSFORM = EvalTransform(8, PreprocessConfig())


def test_cifar10_has_its_names_templates_and_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path / "cifar10", monkeypatch)
    data = open_set("cifar10", "test", tmp_path)
    assert (data.name, data.split, data.kind, len(data)) == ("cifar10", "test", "classification", 10)
    assert data.classnames == CIFAR_NAMES
    assert len(data.templates) == 18
    assert all("{c}" in template for template in data.templates)
    batches = [list(data.batches(TRANSFORM, 4, workers)) for workers in (0, 1)]
    for first, second in zip(*batches, strict=True):
        assert torch.equal(first.images, second.images)
    train = data.beside("train")
    assert (train.name, train.split, len(train)) == ("cifar10", "train", 50)
    assert data.beside("val") is None
    assert open_set(str(tmp_path / "cifar10"), "test", tmp_path).identity == data.identity


def test_a_damaged_set_is_named_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar10(tmp_path / "cifar10", monkeypatch)
    (tmp_path / "cifar10/cifar-10-batches-py/test_batch").write_bytes(b"x")
    message = refusal("cifar10", "test", tmp_path)
    assert "not found or corrupted" in message
    assert f"diffclip data download cifar10 --root {tmp_path}" in message
    write_caltech101(tmp_path / "caltech101", [2] * 101)
    message = refusal("caltech101", "test", tmp_path)
    assert "has no image or no name of its class 101: remove it and fetch it again" in message


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_items_match_those_of_clip_benchmark(name: str, tmp_path: Path) -> None:
    MAKERS[name](tmp_path / name)
    theirs = builder.build_dataset(name, root=str(tmp_path / name), split="test", download=False)
    data = open_set(name, "test", tmp_path)
    assert (data.classnames, data.templates) == (theirs.classes, theirs.templates)
    assert data.labels == [label for _, label in theirs]
    for i, (photo, _) in enumerate(theirs):
        assert data.source.image(i).tobytes() == photo.convert("RGB").tobytes()
        assert Path(data.source.name(data.indices[i])).is_file()
    train = data.beside("train")
    assert len(train) == {"pets": 6, "food101": 4}.get(name, 2)
    assert (data.beside("val") is not None) == (name in ("dtd", "fgvc_aircraft"))
    assert train.beside("test").identity == data.identity
    message = refusal(name, "testing", tmp_path)
    assert f"{name} has no split 'testing': choose from train" in message


def test_broken_and_missing_images_are_left_out(tmp_path: Path) -> None:
    MAKERS["dtd"](tmp_path / "dtd")
    images = tmp_path / "dtd/dtd/dtd/images"
    (images / "striped/striped_test.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut")
    data = open_set("dtd", "test", tmp_path)
    (batch,) = data.batches(TRANSFORM, 4)
    assert batch.positions == [1]
    (fault,) = data.faults
    assert fault.name == str(images / "striped/striped_test.jpg")
    assert fault.reason.startswith("is missing, cut short or broken")
    (images / "banded/banded_test.jpg").unlink()
    with pytest.raises(InputError, match=r"every image in .*/dtd is broken"):
        list(open_set("dtd", "test", tmp_path).batches(TRANSFORM, 4))


def test_caltech101_has_up_to_30_training_images_per_class(tmp_path: Path) -> None:
    counts = [33, 31, 30, 2] + [2] * 98
    write_caltech101(tmp_path / "caltech101", counts)
    train, test = (open_set("caltech101", split, tmp_path) for split in ("train", "test"))
    assert [Counter(train.labels)[label] for label in range(4)] == [30, 30, 29, 1]
    assert [Counter(test.labels)[label] for label in range(4)] == [3, 1, 1, 1]
    assert not set(train.indices) & set(test.indices)
    assert len(train) + len(test) == sum(counts)
    assert len(test.classnames) == 102
    assert test.source.image(test.indices[0]).size == (4, 4)


def test_sun397_is_split_by_name_not_by_the_order_on_disk(tmp_path: Path) -> None:
    write_sun397(tmp_path / "sun397", {"abbey": 101, "alley": 100, "bar": 4})
    train, test = (open_set("sun397", split, tmp_path) for split in ("train", "test"))
    assert Counter(train.labels) == {0: 81, 1: 80, 2: 3}
    assert Counter(test.labels) == {0: 20, 1: 20, 2: 1}
    drawn = {data.split: [data.source.keys[i] for i in data.indices] for data in (train, test)}
    assert not set(drawn["train"]) & set(drawn["test"])
    names = [name for keys in drawn.values() for name in keys]
    labels = [*train.labels, *test.labels]
    indices = draw_split(names, labels, "test", 0.8)
    assert [names[i] for i in indices] == drawn["test"]


def test_shards_take_precedence_over_files(tmp_path: Path) -> None:
    dtd = tmp_path / "dtd"
    MAKERS["dtd"](dtd)
    write_shard(dtd / "test" / "0.tar", 3, changes={n: {"cls": b"0"} for n in range(3)})
    (dtd / "classnames.txt").write_text("one\ntwo\n")
    data = open_set("dtd", "test", tmp_path)
    assert (data.classnames, len(data)) == (["one", "two"], 3)
    # The other splits still come from files.
    assert data.beside("train").classnames == ["banded", "striped"]
    (dtd / "test" / "make-shards.json").write_text('{"edge": 80}')
    (dtd / "test" / "nshards.txt").write_text("1")
    notes = [fault for fault in open_set("dtd", "test", tmp_path).faults if fault.name == str(dtd / "test")]
    assert "holds images of 80 px" in str(notes[-1])
    (dtd / "test" / "make-shards.json").write_text("{")
    assert "make-shards.json cannot be read" in refusal("dtd", "test", tmp_path)


def test_a_missing_clip_benchmark_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MAKERS["dtd"](tmp_path / "dtd")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert "run pip install 'diffclip[eval]'" in refusal("dtd", "test", tmp_path)


def test_missing_sets_and_splits_are_listed_with_their_commands(tmp_path: Path) -> None:
    for name in ("dtd", "pets"):
        MAKERS[name](tmp_path / name)
    (tmp_path / "pets" / "oxford-iiit-pet" / "annotations").rename(tmp_path / "elsewhere")
    entries = [Entry("zero-shot", name) for name in ("sun397", "dtd", "pets")]
    assert missing_of(entries, tmp_path) == {
        "sun397": f"39 GB to download: diffclip data download sun397 --root {tmp_path}",
        "pets": f"811 MB to download: diffclip data download pets --root {tmp_path}",
    }
    assert missing_of(entries[1:2], None)["dtd"].endswith(" --root FOLDER")
    with pytest.raises(InputError, match="dtd has no split 'dev': choose from train, val, test"):
        missing_of([Entry("zero-shot", "dtd", ("dev",))], tmp_path)

    # shards suffice, also in a folder with the hub's name; a probe also needs shards of its training split
    (tmp_path / "wds_sun397" / "test").mkdir(parents=True)
    (tmp_path / "wds_sun397" / "test" / "0.tar").touch()
    assert base_of("scenes-shapes-sketch") == images_of("scenes-colours") == "scenes-shapes"
    assert images_of("colours") == images_of("shapes-noisy") == images_of("shapes")
    assert images_of("shapes3d") == "shapes3d"
    assert missing_of([Entry("zero-shot", "sun397")], tmp_path) == {}
    message = missing_of([Entry("linear-probe", "sun397")], tmp_path)["sun397"]
    assert message.startswith("its split train, which linear-probe and few-shot learn from: put shards into")
    assert f"or move {tmp_path / 'wds_sun397'} away and get all of it, 39 GB to download: diffclip" in message


def test_opening_a_missing_set_never_calls_clip_benchmarks_download(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(builder, "call", lambda *_, **__: pytest.fail("a shell was asked to download"))
    for name in PUBLISHED:
        (tmp_path / name).mkdir()
        with pytest.raises(InputError, match="to get it"):
            open_set(name, "test", tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(PUBLISHED)

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from file_server import served
from made_sets import pack, write_caltech101, write_cifar10, write_image
from torchvision import datasets

from diffclip.data import published_sets
from diffclip.data.download import fetch
from diffclip.data.open_set import open_set
from diffclip.errors import DiffCLIPError, InputError

pytest.importorskip("clip_benchmark")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address at which this machine serves it."""
    folder = tmp_path / "site"
    folder.mkdir()
    with served(folder) as (address, _):
        yield folder, address


@pytest.fixture
def cifar10(site: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small CIFAR-10 archive that this machine serves."""
    folder, address = site
    source = write_cifar10(tmp_path / "made", monkeypatch)
    archive = folder / "cifar-10-python.tar.gz"
    checksum = pack(source / "cifar-10-batches-py", archive, "cifar-10-batches-py")
    monkeypatch.setattr(datasets.CIFAR10, "url", f"{address}/{archive.name}")
    monkeypatch.setattr(datasets.CIFAR10, "tgz_md5", checksum)
    return archive


def test_fetch_downloads_cifar10_through_torchvision(cifar10: Path, tmp_path: Path) -> None:
    root = tmp_path / "deep" / "root"
    assert fetch("cifar10", root) == root / "cifar10"
    assert [path.name for path in root.iterdir()] == ["cifar10"]
    assert [path.name for path in (root / "cifar10").iterdir()] == ["cifar-10-batches-py"]
    assert len(open_set("cifar10", "test", root)) == 10


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_a_failed_fetch_leaves_no_files(cifar10: Path, tmp_path: Path, damage: str) -> None:
    cifar10.unlink() if damage == "gone" else cifar10.write_bytes(b"x")
    with pytest.raises(DiffCLIPError, match=r"cannot fetch cifar10 from https://www.cs.toronto") as raised:
        fetch("cifar10", tmp_path / "root")
    assert not isinstance(raised.value, InputError)
    assert "\n" not in str(raised.value)
    assert list((tmp_path / "root").iterdir()) == []


def test_fetch_unpacks_archives_and_an_archive_inside_an_archive(site, tmp_path, monkeypatch) -> None:
    folder, address = site

    def set_archives(name: str, *files: str) -> None:
        archives = tuple(f"{address}/{file}" for file in files)
        changed = replace(published_sets.PUBLISHED[name], archives=archives)
        monkeypatch.setitem(published_sets.PUBLISHED, name, changed)

    set_archives("imagenet-r", "gone.tar")
    with pytest.raises(DiffCLIPError, match="cannot fetch imagenet-r from https://github"):
        fetch("imagenet-r", tmp_path / "root")
    assert list((tmp_path / "root").iterdir()) == []
    write_image(tmp_path / "made" / "COCO_1.jpg")
    pack(tmp_path / "made", folder / "val2014.tar", "val2014")
    coco = {
        "images": [{"id": 1, "file_name": "COCO_1.jpg"}],
        "annotations": [{"image_id": 1, "caption": "a"}],
    }
    (folder / "coco_test_karpathy.json").write_text(json.dumps(coco))
    set_archives("mscoco_captions", "val2014.tar", "coco_test_karpathy.json")
    target = fetch("mscoco_captions", tmp_path / "root")
    assert sorted(path.name for path in target.iterdir()) == ["coco_test_karpathy.json", "val2014"]
    assert open_set("mscoco_captions", "test", tmp_path / "root").captions == [["a"]]
    write_caltech101(tmp_path / "made", [2] * 102)
    inner = tmp_path / "zip" / "caltech-101" / "101_ObjectCategories.tar.gz"
    pack(tmp_path / "made/caltech101/101_ObjectCategories", inner, "101_ObjectCategories")
    shutil.make_archive(str(folder / "caltech-101"), "zip", tmp_path / "zip")
    set_archives("caltech101", "caltech-101.zip")
    fetch("caltech101", tmp_path / "root")
    assert len(open_set("caltech101", "test", tmp_path / "root")) == 102


def test_fetch_refuses_an_incomplete_set_or_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "half").touch()
    with pytest.raises(InputError, match="cifar10 exists but is not a complete CIFAR-10"):
        fetch("cifar10", tmp_path)
    with pytest.raises(InputError, match="is in the way"):
        fetch("dtd", tmp_path / "cifar10" / "half")

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from given import refusal
from made_sets import write_image
from open_clip import IMAGENET_CLASSNAMES
from timm.data import ImageNetInfo

from diffclip.data.open_set import open_set

SYNSETS = ImageNetInfo().label_names()
SOME = SYNSETS[1:400:2]  # two hundred


@pytest.fixture(scope="module")
def one_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_image(tmp_path_factory.mktemp("one") / "one.JPEG")


def write_classes(folder: Path, names: Iterable[str], image: Path) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "one.JPEG").hardlink_to(image)
    return folder


def test_imagenet_is_read_from_torchvisions_class_folders(tmp_path: Path, one_image: Path) -> None:
    folder = write_classes(tmp_path / "imagenet1k" / "val", SYNSETS, one_image)

    data = open_set("imagenet1k", "test", tmp_path)
    assert data.labels == list(range(1000))
    assert data.classnames == list(IMAGENET_CLASSNAMES)
    assert data.source.name(0) == str(folder / "n01440764/one.JPEG")
    (fault,) = data.faults
    assert str(fault) == f"{folder} has 1,000 images, imagenet1k has 50,000: fetch it again"
    assert data.beside("train") is None
    write_classes(tmp_path / "imagenet1k" / "train", SYNSETS, one_image)
    assert open_set("imagenet1k", "test", tmp_path).beside("train").labels == list(range(1000))
    builder = pytest.importorskip("clip_benchmark.datasets.builder")
    prompts = Path(builder.__file__).parent / "en_zeroshot_classification_templates.json"
    assert json.loads(prompts.read_text())["imagenet1k"] == data.templates
    names = json.loads((prompts.parent / "en_classnames.json").read_text())
    assert names["imagenet1k"] == data.classnames


def test_imagenet_r_has_the_classes_of_its_folders(tmp_path: Path, one_image: Path) -> None:
    folder = write_classes(tmp_path / "imagenet-r" / "imagenet-r", SOME, one_image)
    (folder / "README.txt").touch()
    write_image(folder / SOME[2] / "another.png")
    data = open_set("imagenet-r", "test", tmp_path)
    assert data.labels == [0, 1, 2, 2, *range(3, 200)]
    assert data.classnames == list(IMAGENET_CLASSNAMES[1:400:2])
    assert data.beside("train") is None
    assert open_set("imagenet-r", "test", tmp_path).identity == data.identity
    (folder / SOME[0] / "one.JPEG").unlink()
    write_image(folder / SOME[0] / "one.JPEG", 7)
    changed = open_set("imagenet-r", "test", tmp_path).identity
    assert {key for key in changed if changed[key] != data.identity[key]} == {"source"}
    (folder / "n00000000").mkdir()
    assert "n00000000 is not a class of imagenet-r" in refusal("imagenet-r", "test", tmp_path)
    (tmp_path / "imagenet-a" / "cats").mkdir(parents=True)
    message = refusal("imagenet-a", "test", tmp_path)
    assert "imagenet-a (ImageNet-A, 688 MB to download) is not in" in message
    assert "imagenet-a, which has neither imagenet-a nor test/*.tar; to get it: " in message


def test_imagenet_v2_has_numbered_folders_and_sketch_1000_classes(tmp_path: Path, one_image: Path) -> None:
    folder = tmp_path / "imagenetv2" / "imagenetv2-matched-frequency-format-val"
    write_classes(folder, map(str, range(1000)), one_image)
    data = open_set("imagenetv2", "test", tmp_path)
    assert data.labels == list(range(1000))
    assert data.source.keys[10] == "10/one.JPEG"
    (folder / "1000").mkdir()
    assert "1000 is not a class of imagenetv2" in refusal("imagenetv2", "test", tmp_path)
    write_classes(tmp_path / "imagenet_sketch" / "sketch", SYNSETS[::-1], one_image)
    assert open_set("imagenet_sketch", "test", tmp_path).labels == list(range(1000))
    shutil.rmtree(tmp_path / "imagenet_sketch" / "sketch" / SYNSETS[0])
    assert "has 999 class folders, imagenet_sketch has 1000" in refusal("imagenet_sketch", "test", tmp_path)

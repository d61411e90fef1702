import json
from pathlib import Path

import pytest
from given import refusal
from made_sets import write_image

from diffclip.config import PreprocessConfig
from diffclip.data.open_set import open_set
from diffclip.preprocess import EvalTransform

CAPTIONS = {
    "1000.jpg": ["A child , climbing stairs .", "two, three"],
    "2.jpg": ["a dog"],
    "30.jpg": ["a", "b", "c", "d", "e", "f"],
}


def write_flickr(place: Path, split: str = "test", inside: str = "Images") -> Path:
    lines = [f"{image},{caption}" for image, captions in CAPTIONS.items() for caption in captions]
    for number, image in enumerate(CAPTIONS):
        write_image(place / inside / image, number)
    file = place / f"{place.name}_{split}_karpathy.txt"
    file.write_text("image,caption\n" + "\n".join(lines) + "\n\n")
    return file


def write_coco(place: Path) -> Path:
    numbers = {7: "1000.jpg", 5: "2.jpg", 100: "30.jpg"}
    pairs = [(number, caption) for number, name in numbers.items() for caption in CAPTIONS[name]]
    for number, name in numbers.items():
        write_image(place / "val2014" / name, number)
    write_image(place / "val2014" / "bare.jpg")  # has no captions and is left out
    images = [{"id": number, "file_name": name} for number, name in (numbers | {1: "bare.jpg"}).items()]
    captions = [{"id": index, "image_id": pair[0], "caption": pair[1]} for index, pair in enumerate(pairs)]
    file = place / "coco_test_karpathy.json"
    file.write_text(json.dumps({"images": images, "annotations": captions}))
    return file


@pytest.mark.parametrize(
    ("name", "inside"), [("flickr8k", "Images"), ("flickr30k", "flickr30k_images/flickr30k_images")]
)
def test_flickr_is_read_as_by_clip_benchmark(tmp_path: Path, name: str, inside: str) -> None:
    file = write_flickr(tmp_path / name, inside=inside)
    data = open_set(name, "test", tmp_path)
    assert (data.name, data.kind, data.faults) == (name, "retrieval", [])
    assert dict(zip((data.source.keys[i] for i in data.indices), data.captions, strict=True)) == CAPTIONS
    (batch,) = data.batches(EvalTransform(8, PreprocessConfig()), 4)
    assert batch.captions == list(CAPTIONS.values())
    assert data.beside("val") is None
    write_flickr(tmp_path / name, "val", inside)
    val = open_set(name, "test", tmp_path).beside("val")
    assert val is not None
    assert val.split == "val"
    assert "has no split 'dev'" in refusal(name, "dev", tmp_path)
    flickr = pytest.importorskip("clip_benchmark.datasets.flickr")
    theirs = flickr.Flickr(str(tmp_path / name / inside), str(file))
    assert theirs.data == list(zip((data.source.keys[i] for i in data.indices), data.captions, strict=True))


def test_coco_is_read_as_by_torchvision(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    from torchvision.datasets import CocoCaptions

    file = write_coco(tmp_path / "mscoco_captions")
    theirs = [item for item in CocoCaptions(str(file.parent / "val2014"), str(file)) if item[1]]
    data = open_set("mscoco_captions", "test", tmp_path)
    assert [data.source.keys[i] for i in data.indices] == ["2.jpg", "1000.jpg", "30.jpg"]
    assert data.captions == [captions for _, captions in theirs]
    for i, (photo, _) in zip(data.indices, theirs, strict=True):
        assert data.source.image(i).tobytes() == photo.tobytes()


def test_missing_images_are_named_and_counted(tmp_path: Path) -> None:
    folder = tmp_path / "flickr8k" / "Images"
    write_flickr(tmp_path / "flickr8k")
    (folder / "2.jpg").unlink()
    (folder / "30.jpg").write_bytes(b"x")
    data = open_set("flickr8k", "test", tmp_path)
    assert (len(data), [str(fault) for fault in data.faults]) == (2, [f"{folder / '2.jpg'} is missing"])
    (batch,) = data.batches(EvalTransform(8, PreprocessConfig()), 4)
    assert batch.captions == [CAPTIONS["1000.jpg"]]
    assert [fault.name for fault in data.faults] == [str(folder / "2.jpg"), str(folder / "30.jpg")]
    for name in ("1000.jpg", "30.jpg"):
        (folder / name).unlink()
    assert "not one image in" in refusal("flickr8k", "test", tmp_path)

import os
import resource
import tarfile
import unicodedata
from pathlib import Path

import pytest
from made_sets import write_image
from PIL import Image

from diffclip.cli.data import make_shards
from diffclip.data.make_shards import find_captions
from diffclip.data.open_set import open_set
from diffclip.data.pairs import Pairs
from diffclip.errors import Fault, InputError


@pytest.fixture
def kaggle(tmp_path: Path) -> Path:
    """Flickr8k as docs/train.md gets it: Kaggle's folder and a file of captions for each split."""
    folder = tmp_path / "flickr8k"
    for number in range(8):
        write_image(folder / "Images" / f"{number}.jpg", number, (60, 40))
    lines = [f"{number}.jpg,caption {caption} of {number}" for number in range(8) for caption in range(2)]
    (folder / "captions.txt").write_text("\n".join(["image,caption", *lines]) + "\n")
    for split, numbers in (("train", range(6)), ("val", (6,)), ("test", (7,))):
        rows = [line for line in lines if int(line[0]) in numbers]
        (folder / f"flickr8k_{split}_karpathy.txt").write_text("\n".join(["image,caption", *rows]) + "\n")
    return folder


def captions_in(folder: Path) -> dict[str, list[str]]:
    found = Pairs(folder)
    pairs = [found[i] for i in range(len(found))]
    return {pair.key.rpartition("_")[2]: pair.captions.texts for pair in pairs if not isinstance(pair, Fault)}


def test_flickr8k_from_kaggle_becomes_three_splits(kaggle, tmp_path, capsys) -> None:
    shards = tmp_path / "shards"
    # the folder of images may be a link
    (kaggle / "Images").rename(tmp_path / "Images")
    (kaggle / "Images").symlink_to(tmp_path / "Images")
    make_shards(kaggle, shards, edge=20, workers=1)
    captured = capsys.readouterr()
    assert "left out, of no split: captions.txt; name" in captured.err
    out = captured.out.splitlines()
    assert out[0] == f"6 images with 12 captions in 1 shard in {shards / 'train'}; 0 left out"
    assert out[-1] == f"Next: diffclip data check {shards / 'train'}"
    wanted = {str(n): [f"caption {c} of {n}" for c in range(2)] for n in range(6)}
    assert captions_in(shards / "train") == wanted
    data = open_set(shards, "test")
    assert (data.kind, len(data), data.captions) == ("retrieval", 1, [["caption 0 of 7", "caption 1 of 7"]])
    assert data.source.image(0).size == (30, 20)


def test_splits_are_found_in_caption_file_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train2017", "validation", "dev"):
        (tmp_path / f"captions_{name}.json").touch()
    stems = {split: file.stem for split, file in find_captions(tmp_path).items()}
    assert stems == {"train": "captions_train2017", "val": "captions_validation"}
    assert "left out, of no split: captions_dev.json; " in capsys.readouterr().err


def test_texts_beside_the_images_are_packed_as_they_are(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("a dog")
    with pytest.raises(
        InputError, match=r"has no file of captions: its \.txt are of one image each.* tar -cf 0\.tar"
    ):
        find_captions(tmp_path)


def test_a_folder_of_shards_is_new_and_whole_or_not_at_all(kaggle: Path, tmp_path: Path, file_limit) -> None:
    shards = tmp_path / "shards"
    options = {"captions": kaggle / "captions.txt", "workers": 1}
    file_limit(20_000)
    with pytest.raises(InputError, match=f"cannot write {shards}: File too large"):
        make_shards(kaggle, shards, **options)
    file_limit(resource.RLIM_INFINITY)
    assert not shards.exists()
    assert os.listdir(tmp_path) == ["flickr8k"]
    make_shards(kaggle, shards, **options)
    assert sorted(os.listdir(shards)) == ["0.tar", "nshards.txt"]
    # image files are copied unchanged
    with tarfile.open(shards / "0.tar") as archive:
        names = {name.rpartition("_")[2]: name for name in archive.getnames()}
        content = archive.extractfile(names["3.jpg"])
        assert content is not None
        assert content.read() == (kaggle / "Images" / "3.jpg").read_bytes()
    with pytest.raises(InputError, match="shards is not empty: give a new folder"):
        make_shards(kaggle, shards, **options)


def test_equal_image_names_are_matched_by_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "set"
    for stem in ("a/0", "b/0", "a/1"):
        write_image(source / f"{stem}.png")
    lines = ("image,caption", "a/0,first", "b/0.png,second", "c/0.png,third", "1.png,alone")
    (source / "captions.csv").write_text("\n".join(lines))
    make_shards(source, tmp_path / "shards", workers=1)
    assert "1 left out" in capsys.readouterr().out
    found = Pairs(tmp_path / "shards")
    pairs = [found[i] for i in range(len(found))]
    assert {pair.captions.texts[0] for pair in pairs if not isinstance(pair, Fault)} == {
        "alone",
        "first",
        "second",
    }


def captions_of(source: Path, folder: Path) -> dict[str, str]:
    """Make shards; return the caption of each image, by the image's mean color."""
    make_shards(source, folder, workers=1)
    found = Pairs(folder)
    return {
        pair.captions.texts[0]: str(pair.pixels.float().mean().round().int().item())
        for pair in map(found.__getitem__, range(len(found)))
    }


def write_gray(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8), value).save(path)


def test_a_bare_name_that_two_folders_have_is_refused_with_both(tmp_path, capsys) -> None:
    source = tmp_path / "set"
    for value, name in enumerate(("a/1.png", "b/1.png", "c/2.png")):
        write_gray(source / name, value)
    (source / "captions.csv").write_text("image,caption\n1.png,which\n")
    with pytest.raises(InputError, match=r"1\.png may be a/1\.png or b/1\.png: give its whole path"):
        make_shards(source, tmp_path / "none", workers=1)
    (source / "captions.csv").write_text("image,caption\n1.png,which\nx/2.png,this\n")
    assert captions_of(source, tmp_path / "shards") == {"this": "2"}
    assert "1.png: may be a/1.png or b/1.png" in capsys.readouterr().err


def test_names_match_however_they_are_written(tmp_path) -> None:
    source = tmp_path / "set"
    names = ["é/1.png", "b/1.png", "2.png", "b/2.png", "c/3.png", "c/4.png", "b/5.png", "D/6.PNG"]
    for value, name in enumerate(names):
        write_gray(source / unicodedata.normalize("NFD", name), value)
    written = [
        "é/1.png",
        "b\\1.png",
        f"{source}/2.png",
        "./b/2.png",
        "/home/me/set/c/3.png",
        r"C:\set\c\4.png",
        "b//5",
        "d/6.png",
    ]
    rows = [f"{name},{value}" for value, name in enumerate(written)]
    (source / "captions.csv").write_text("\n".join(["image,caption", *rows, "./2.png,2", "q/1.png,no"]))
    assert captions_of(source, tmp_path / "shards") == {str(value): str(value) for value in range(len(names))}


def test_images_that_are_not_read_are_named(tmp_path, capsys) -> None:
    source = tmp_path / "set"
    write_gray(source / "0.png", 0)
    for number in range(1, 4):
        (source / f"{number}.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(20))
    (source / "loop").symlink_to("..")
    (source / "again").symlink_to("..")
    rows = [f"{number},caption {number}" for number in range(4)]
    (source / "captions.csv").write_text("\n".join(["image,caption", *rows]))
    assert captions_of(source, tmp_path / "shards") == {"caption 0": "0"}
    assert "3 left out" in capsys.readouterr().out


def test_missing_and_broken_images_are_reported(kaggle, tmp_path, capsys) -> None:
    (kaggle / "Images" / "2.jpg").write_bytes(b"no image")
    (kaggle / "Images" / "4.jpg").unlink()
    write_image(kaggle / "Images" / "8.jpg")
    with (kaggle / "captions.txt").open("a") as file:
        file.write("8.jpg, \n")
    make_shards(kaggle, tmp_path / "shards", captions=kaggle / "captions.txt", workers=1)
    captured = capsys.readouterr()
    assert captured.out.startswith("6 images with 12 captions in 1 shard")
    assert "3 left out" in captured.out
    assert f"4.jpg: is not in {kaggle}" in captured.err
    assert "2.jpg: is not an image" in captured.err
    assert "8.jpg: has no caption" in captured.err
    for image in (kaggle / "Images").iterdir():
        image.write_bytes(b"no image")
    with pytest.raises(InputError, match=rf"every image in {kaggle} is broken \(first: .* is not an image"):
        make_shards(kaggle, tmp_path / "none", captions=kaggle / "captions.txt", workers=1)
    assert not (tmp_path / "none").exists()

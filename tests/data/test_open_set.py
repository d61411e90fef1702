import json
from pathlib import Path

import pytest
from given import refusal, write_shard
from made_sets import encoded, write_image
from PIL import Image

from diffclip.config import PreprocessConfig
from diffclip.data.open_set import open_set
from diffclip.data.published_sets import base_of, images_of
from diffclip.errors import InputError
from diffclip.evaluation.suite import Entry, missing_of
from diffclip.preprocess import EvalTransform

TRANSFORM = EvalTransform(8, PreprocessConfig())


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """Five samples of two classes in two shards."""
    folder = tmp_path / "things"
    labels = {n: {"txt": None, "cls": f" {n % 2}\n".encode()} for n in range(5)}
    write_shard(folder / "test" / "0.tar", 3, changes=labels)
    write_shard(folder / "test" / "1.tar", 2, start=3, changes=labels)
    (folder / "test" / "nshards.txt").write_text("2\n")
    (folder / "classnames.txt").write_text("cat\ngolden dog\n")
    (folder / "zeroshot_classification_templates.txt").write_text("a photo of a {c}.\n{c}\n")
    return folder


@pytest.fixture
def captioned(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    write_shard(folder / "val" / "0.tar", 5, changes={4: {"txt": b"only one"}})
    (folder / "val" / "nshards.txt").write_text("1")
    (folder / "dataset_type.txt").write_text("retrieval\n")
    return folder


def test_a_classification_set_has_labels_names_and_templates(classes: Path) -> None:
    data = open_set(classes, "test")
    assert (data.name, data.split, data.kind, len(data)) == ("things", "test", "classification", 5)
    assert data.classnames == ["cat", "golden dog"]
    assert data.templates == ["a photo of a {c}.", "{c}"]
    assert data.labels == [0, 1, 0, 1, 0]
    assert data.source.name(data.indices[4]).endswith(":s0000004")
    batches = list(data.batches(TRANSFORM, 2))
    assert [batch.images.shape for batch in batches] == [(count, 3, 8, 8) for count in (2, 2, 1)]
    assert data.faults == []
    assert data.beside("train") is None
    (classes / "classnames.txt").write_text("cat\ndog\nemu\nfox\n")
    (classes / "zeroshot_classification_templates.txt").unlink()
    fault, note = open_set(classes, "test").faults
    assert str(note).endswith("has no zeroshot_classification_templates.txt: 'a photo of a {c}' is taken")
    assert "has no image of 2 of its 4 classes, the first is 'emu'" in str(fault)


def test_published_sets_are_found_by_name_or_named_with_their_commands(
    classes: Path, captioned: Path
) -> None:
    root = classes.parent
    command = f"diffclip data download dtd --root {root}"
    assert f"dtd (Describable Textures) is not in {root / 'dtd'}; to get it: {command}" in refusal(
        "dtd", "test", root
    )
    (root / "dtd").mkdir()
    assert command in refusal("dtd", "test", root)
    assert "needs --data-root FOLDER, with FOLDER/mmvp in it" in refusal("mmvp", "test")
    classes.rename(root / "wds_sun397")
    assert open_set("sun397", "test", root).name == open_set(root / "wds_sun397", "test").name == "sun397"
    captioned.rename(root / "flickr8k")
    entries = [
        Entry("zero-shot", "sun397"),
        Entry("retrieval", "flickr8k", ("test", "val")),
        Entry("few-shot", "dtd"),
    ]
    assert missing_of(entries, root) == {"dtd": command}
    assert missing_of(entries[2:], None)["dtd"].endswith(" --root FOLDER")
    message = missing_of([Entry("linear-probe", "sun397")], root)["sun397"]
    train = root / "wds_sun397" / "train"
    assert message == f"its split train, which linear-probe and few-shot learn from: put shards into {train}"
    assert "wds_sun397 has no split 'train': choose from test" in refusal("sun397", "train", root)
    assert base_of("scenes-shapes-sketch") == images_of("scenes-colours") == "scenes-shapes"
    assert images_of("colours") == images_of("shapes-noisy") == images_of("shapes")
    assert (base_of("imagenet-a"), base_of("dtd"), images_of("shapes3d")) == ("imagenet1k", None, "shapes3d")


def test_a_retrieval_set_opens_a_split_or_a_part_of_it(captioned: Path, monkeypatch) -> None:
    data = open_set(str(captioned), "val")
    assert (data.name, data.kind, len(data)) == ("images", "retrieval", 5)
    assert (data.classnames, data.templates, data.labels) == ([], [], [])
    captions = [caption for batch in data.batches(TRANSFORM, 2) for caption in batch.captions]
    assert captions == data.captions == [[f"first {n}", f"second {n}"] for n in range(4)] + [["only one"]]
    # ROOT/NAME comes before a folder of that name in the working directory
    (captioned.parent / "here" / "images").mkdir(parents=True)
    monkeypatch.chdir(captioned.parent / "here")
    monkeypatch.setenv("HOME", str(captioned.parent))
    assert open_set("images", "val", "~").captions == captions
    assert "has no split 'val'" in refusal("./images", "val", captioned.parent)
    first, second = open_set(captioned, "val[:2]"), open_set(captioned, "val[2:]")
    assert [*first.captions, *second.captions] == captions
    assert (first.split, len(first)) == ("val[:2]", 2)
    assert first.identity != second.identity
    with pytest.raises(InputError, match=r"has 5 samples, not those of \[7:\]"):
        open_set(captioned, "val[7:]")


def test_captions_without_a_dataset_type_or_classes_are_for_retrieval(captioned: Path) -> None:
    (captioned / "dataset_type.txt").unlink()
    assert open_set(captioned, "val").kind == "retrieval"
    (captioned / "dataset_type.txt").write_text("classification")
    assert "has no classnames.txt" in refusal(captioned, "val")


def test_broken_images_are_left_out_and_named_once(captioned: Path) -> None:
    changes = {1: {"jpg": b"x"}, 2: {"txt": b" "}, 3: {"jpg": None}, 4: {"jpg": b"y"}}
    path = write_shard(captioned / "val" / "0.tar", 6, changes=changes)
    data = open_set(captioned, "val")
    assert len(data) == 4
    for _ in range(2):
        batches = list(data.batches(TRANSFORM, 2))
        assert [position for batch in batches for position in batch.positions] == [0, 3]
        captions = [caption for batch in batches for caption in batch.captions]
        assert captions == [[f"first {n}", f"second {n}"] for n in (0, 5)]
        assert sorted(fault.name for fault in data.faults) == [f"{path}:s{n:07d}" for n in (1, 2, 3, 4)]


def test_a_wrong_number_of_shards_in_nshards_txt_is_refused(classes: Path) -> None:
    (classes / "test" / "nshards.txt").write_text("3")
    assert "has 2 shards, and its nshards.txt says '3'" in refusal(classes, "test")
    (classes / "test" / "nshards.txt").unlink()
    assert len(open_set(classes, "test")) == 5


def test_missing_sets_folders_and_splits_are_named(classes: Path, tmp_path: Path) -> None:
    assert "pets, scenes, scenes-colours, scenes-counts, scenes-mmvp" in refusal("wordnet", "test")
    assert "did you mean 'scenes'?; or give a folder in clip_benchmark's layout" in refusal("scene", "test")
    for path in (tmp_path / "nowhere", classes / "classnames.txt"):
        assert "is not a folder: give one in clip_benchmark's layout" in refusal(path, "test")
    (classes / "train").mkdir()
    (classes / "val").mkdir()
    (classes / "val" / "0.tar").touch()
    assert "has no split 'testing': choose from test, val" in refusal(classes, "testing")
    assert "no .tar shards in folder" in refusal(classes, "train")
    write_image(classes / "train" / "cat" / "1.jpg")
    assert "train holds image files, and no .tar shards: give them to diffclip.evaluate" in refusal(
        classes, "train"
    )
    (tmp_path / "bare").mkdir()
    assert "has no split 'test': give a folder of folders" in refusal(tmp_path / "bare", "test")
    assert "no sample in" in refusal(classes, "val")


def test_splits_open_beside_a_set_and_identities_show_changes(classes: Path) -> None:
    data = open_set(classes, "test")
    write_shard(classes / "train" / "0.tar", 2, changes={n: {"cls": b"1"} for n in range(2)})
    train = data.beside("train")
    assert train is not None
    assert (train.name, train.split, train.labels) == ("things", "train", [1, 1])
    first = train.beside("test").identity
    assert json.loads(json.dumps(first)) == first == data.identity
    (classes / "classnames.txt").write_text("cat\nwolf\n")
    renamed = open_set(classes, "test").identity
    assert {key for key in first if first[key] != renamed[key]} == {"texts"}
    write_shard(classes / "test" / "0.tar", 3, changes={n: {"txt": None, "cls": b"1"} for n in range(3)})
    relabelled = open_set(classes, "test").identity
    assert {key for key in first if renamed[key] != relabelled[key]} == {"source", "answers"}


def test_class_names_and_templates_are_read_and_checked(classes: Path) -> None:
    (classes / "zeroshot_classification_templates.txt").write_text("a photo of a {}.\n")
    assert "'a photo of a {}.' in" in refusal(classes, "test")
    (classes / "zeroshot_classification_templates.txt").unlink()
    (classes / "classnames.txt").write_bytes("\ufeffcat\r\nKäse\r\n\r\n".encode())
    data = open_set(classes, "test")
    assert (data.classnames, data.templates) == (["cat", "Käse"], ["a photo of a {c}"])
    (classes / "classnames.txt").write_text("cat\ncat\n")
    assert open_set(classes, "test").faults[0].reason.startswith("names 'cat' twice: a tie")
    # A blank line inside the list would shift every class after it.
    (classes / "classnames.txt").write_text("cat\n\ndog\n")
    assert "line 2 is blank" in refusal(classes, "test")
    (classes / "classnames.txt").write_text("cat\n")
    assert "classnames.txt has a single class, 'cat'" in refusal(classes, "test")
    (classes / "classnames.txt").write_text("\n\n")
    assert "has no classnames.txt" in refusal(classes, "test")
    (classes / "dataset_type.txt").write_text("multilabel")
    assert "of type 'multilabel' (dataset_type.txt), which diffclip does not measure" in refusal(
        classes, "test"
    )


@pytest.mark.parametrize("label", ["2", "-1", "0.5", "1_0", "9" * 5000])
def test_a_bad_label_is_named_in_the_error(classes: Path, label: str) -> None:
    labels = {n: {"cls": b"0"} for n in range(2)} | {2: {"cls": label.encode()}}
    path = write_shard(classes / "test" / "0.tar", 3, changes=labels)
    message = f"label '{label[:20]}' of {path}:s0000002 is not a number from 0 to 1, the lines"
    assert message in refusal(classes, "test")


def test_choices_that_are_not_texts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "dataset_type.txt").write_text("sugarcrepe")
    for name, caption in ((3, "a"), ("a.jpg", None)):
        item = {"filename": name, "caption": caption, "negative_caption": "b"}
        (tmp_path / "swap_obj.json").write_text(json.dumps({"0": item}))
        message = refusal(tmp_path, "test")
        assert f"swap_obj.json cannot be read (({name!r}, {caption!r}, 'b') are not texts)" in message


def test_samples_without_labels_are_faults(classes: Path, captioned: Path) -> None:
    write_shard(classes / "test" / "0.tar", 3, changes={1: {"cls": b"0"}})
    data = open_set(classes, "test")
    assert len(data) == 3
    assert [fault.reason for fault in data.faults] == ["has no label (.cls)"] * 2
    write_shard(classes / "test" / "0.tar", 3)
    write_shard(classes / "test" / "1.tar", 2)
    assert "has image and label (.cls) (first: " in refusal(classes, "test")
    write_shard(captioned / "val" / "0.tar", 3, changes={n: {"txt": b""} for n in range(3)})
    assert "has image and caption (first: " in refusal(captioned, "val")


def test_a_set_with_masks_and_no_dataset_type_has_the_kind_masks(tmp_path, classes) -> None:
    folder = tmp_path / "masked"
    mask = {"mask.png": encoded(Image.new("L", (4, 4), 255)), "txt": b"a dog"}
    write_shard(folder / "test" / "0.tar", 2, changes=dict.fromkeys(range(2), mask))
    data = open_set(folder, "test")
    assert (data.kind, len(data), data.captions) == ("masks", 2, [["a dog"]] * 2)
    (folder / "dataset_type.txt").write_text("masks")
    assert open_set(folder, "test").kind == "masks"
    (folder / "dataset_type.txt").write_text("classification")
    assert "has no classnames.txt" in refusal(folder, "test")
    (classes / "classnames.txt").unlink()
    assert "has no classnames.txt" in refusal(classes, "test")

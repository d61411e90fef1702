import json
from pathlib import Path

import pytest

from diffclip.data.captions import captions_of, read_captions
from diffclip.errors import InputError

WANTED = {"a.jpg": ["a dog, running", "second"], "b/c.png": ["one"]}
PAIRS = [(1, "a dog, running"), (2, "one"), (1, "second")]
COCO = {
    "images": [{"id": 2, "file_name": "b/c.png"}, {"id": 1, "file_name": "a.jpg"}],
    "annotations": [{"image_id": number, "caption": text} for number, text in PAIRS],
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("captions.txt", 'image,caption\na.jpg,"a dog, running"\na.jpg,second\nb/c.png,one\n'),
        ("captions.csv", "image,caption\na.jpg,a dog, running\na.jpg,second\nb/c.png, one\n\n"),
        ("x.csv", "id,TEXT,filepath\n1,\"a dog, running\",a.jpg\n2,second,a.jpg\n3,one,b/c.png\n"),
        ("x.tsv", "image\tcaption\na.jpg\ta dog, running\na.jpg\tsecond\nb/c.png\tone\n"),
        ("x.csv", "image_name| number| comment\na.jpg| 0| a dog, running\na.jpg| 1| second\nb/c.png| 0| one\nd| 4"),
        ("Flickr8k.token.txt", "a.jpg#0\ta dog, running\na.jpg#1\tsecond\nb/c.png#0\tone\n"),
        ("x.jsonl", '{"image": "a.jpg", "text": ["a dog, running", "second"]}\n{"image": "b/c.png", "text": "one"}'),
        ("list.json", json.dumps([{"image": name, "captions": texts} for name, texts in WANTED.items()])),
        ("coco.json", json.dumps(COCO)),
    ],
)  # fmt: skip
def test_every_format_of_caption_files_is_read(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert read_captions(tmp_path / name) == WANTED


def test_blank_captions_are_left_out_and_newlines_become_spaces(tmp_path: Path) -> None:
    coco = {"images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}]}
    coco["annotations"] = [{"image_id": 1, "caption": "one\ntwo"}, {"image_id": 2, "caption": " "}]
    (tmp_path / "coco.json").write_text(json.dumps(coco))
    assert read_captions(tmp_path / "coco.json") == {"a.jpg": ["one two"], "b.jpg": []}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.csv", b"image,caption\n", "has no caption"),
        ("x.csv", b"where,text\na.jpg,b\n", "no column of images among where, text: name one of them 'image'"),
        ("x.csv", b"\xff\xfe", "should be UTF-8 text"),
        ("x.jsonl", b'{"image": "a.jpg", "caption": "b"}\n{\n', "line 2 is not valid JSON"),
        ("x.jsonl", b'{"image": "a.jpg", "caption": 5}', "the caption of a.jpg is 5, which is not text"),
        ("x.json", b'[{"image": "a.jpg", "caption": [{"raw": "b"}]}]', r"a.jpg is \[{'raw': 'b'}\], which is not text"),
        ("x.json", b'[{"image": "a.jpg", "caption": ["b", NaN]}]', "which is not text"),
        ("x.csv", b'image,caption\na.jpg,"b' + b"x" * 140_000, r"up to line \d+: field larger than .*quote"),
        ("x.csv", b'image,caption\na.jpg,"a star\nb.jpg,a dog\n', "up to line 3: unexpected end of data; is a quote"),
        ("x.json", b'{"images": [], "annotations": [{}]}', "is not COCO's JSON"),
    ],
)  # fmt: skip
def test_bad_caption_files_are_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words) as raised:
        read_captions(tmp_path / name)
    assert "\n" not in str(raised.value)


# --- captions of a sample in a shard ---


def test_captions_of_a_sample_come_from_its_txt_or_json() -> None:
    assert captions_of({"txt": "\ufeffa dog\r\n\n  a cat \n".encode()}, "x") == ["a dog", "a cat"]
    assert captions_of({"json": b'{"caption": "a dog"}'}, "x") == ["a dog"]
    assert captions_of({"json": b'{"caption": ["a dog", " ", "a cat"]}'}, "x") == ["a dog", "a cat"]
    both = {"txt": b"from txt", "json": b'{"caption": "from json", "alt": "other"}'}
    assert captions_of(both, "x") == ["from txt"]
    assert captions_of(both, "x", caption_key="alt") == ["other"]


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({"jpg": b"x"}, "no caption"),
        ({"json": b'{"caption": []}'}, "an empty caption"),
        ({"txt": b"\xff\xfe\xfa"}, "not UTF-8"),
        ({"json": b"{"}, "not valid JSON"),
        ({"json": b"[" * 100_000}, "not valid JSON"),
        ({"json": b"[1]"}, "no key 'caption'"),
        ({"json": b'{"caption": ["a", 1]}'}, "no string or strings as 'caption'"),
    ],
)
def test_bad_captions_of_a_sample_raise_input_error(sample: dict[str, bytes], words: str) -> None:
    with pytest.raises(InputError) as raised:
        captions_of(sample, "0.tar:s1")
    assert str(raised.value).startswith("0.tar:s1 has ")
    assert words in str(raised.value)

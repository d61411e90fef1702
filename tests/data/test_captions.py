import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

from diffclip.data.captions import read_captions
from diffclip.data.pairs import PairKeys
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
        ("pandas.tsv", 'image\tcaption\na.jpg\t"a dog,\nrunning"\n"a.jpg"\t"second"\nb/c.png\tone\n'),
        ("x.csv", "img,raw\na.jpg,\"['a dog, running', 'second']\"\nb/c.png,one\n"),
        ("datasets.json", "\n".join(json.dumps({"image": name, "text": texts}) for name, texts in WANTED.items())),
        ("dataset_flickr8k.json", json.dumps({"dataset": "flickr8k", "images": [
            {"filename": name, "sentences": [{"raw": text} for text in texts]} for name, texts in WANTED.items()]})),
        ("sequence.json", json.dumps([{"filename": name, "sentences": {"raw": t}} for name, t in WANTED.items()])),
        ("list.json", json.dumps([{"image": name, "captions": texts} for name, texts in WANTED.items()])),
        ("flickr8k_test_karpathy.txt", "image,caption\na.jpg,a dog, running\na.jpg,second\nb/c.png,one\n\n"),
        ("by_image.json", json.dumps(WANTED)),
        ("coco.json", json.dumps(COCO)),
    ],
)  # fmt: skip
def test_every_format_of_caption_files_is_read(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert read_captions(tmp_path / name).captions == WANTED


def test_a_quote_in_a_table_separated_by_tabs_may_be_a_mere_character(tmp_path: Path) -> None:
    rows = ['a.jpg\t"big" dog', 'b.jpg\t"big dog', 'c.jpg\tsmall "cat"']
    (tmp_path / "x.tsv").write_text("\n".join(["image\tcaption", *rows]))
    texts = ['"big" dog', '"big dog', 'small "cat"']
    assert read_captions(tmp_path / "x.tsv").captions == {
        row[:5]: [text] for row, text in zip(rows, texts, strict=True)
    }


def test_blank_captions_are_left_out_and_newlines_become_spaces(tmp_path: Path) -> None:
    coco = {"images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}]}
    coco["annotations"] = [{"image_id": 1, "caption": "one\ntwo"}, {"image_id": 2, "caption": " "}]
    (tmp_path / "coco.json").write_text(json.dumps(coco))
    assert read_captions(tmp_path / "coco.json").captions == {"a.jpg": ["one two"], "b.jpg": []}


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("x.csv", "image,caption\na.jpg,a dog\nb.jpg\n", "line 3"),
        ("x.tsv", "image\tid\tcaption\na.jpg\t1\ta dog\nb.jpg\t2\n", "line 3"),
        ("x.token", "a.jpg#0\ta dog\nb.jpg\n", "line 2"),
        ("x.jsonl", '{"image": "a.jpg", "text": "a dog"}\n{"image": "b.jpg"}', "line 2"),
        ("x.json", '[{"image": "a.jpg", "text": "a dog"}, "b.jpg"]', "entry 2"),
        ("x.csv", "image,caption\na.jpg,a dog\n,no name\n", "line 3"),
    ],
)
def test_rows_with_too_little_are_left_out_and_named(
    tmp_path: Path, name: str, content: str, place: str
) -> None:
    (tmp_path / name).write_text(content)
    captions, faults = read_captions(tmp_path / name)
    assert captions == {"a.jpg": ["a dog"]}
    assert [str(one) for one in faults] == [f"{tmp_path / name}, {place} has no image or no caption"]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_a_row_ends_at_a_line_feed_alone(tmp_path: Path, mark: str) -> None:
    for name, content in (
        ("x.csv", f"image,caption\r\na.jpg,a cat{mark}on a mat\r\n"),
        ("x.token", f"a.jpg#0\ta cat{mark}on a mat\n"),
    ):
        (tmp_path / name).write_bytes(content.encode())
        assert read_captions(tmp_path / name) == ({"a.jpg": ["a cat on a mat"]}, [])


@pytest.mark.parametrize("kind", ["parquet", "arrow", "feather", "folder"])
def test_parquet_and_folders_of_datasets_are_read(tmp_path: Path, kind: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    images = [{"bytes": b"x" * 99, "path": name} for name in ("a.jpg", "b/c.png")]
    table = pyarrow.table(
        {"image": images if kind != "parquet" else ["a.jpg", "b/c.png"], "text": list(WANTED.values())}
    )
    file = tmp_path / f"captions.{'arrow' if kind == 'feather' else kind}"
    if kind == "parquet":
        parquet.write_table(table, file)
    else:
        target = file if kind != "folder" else file / "data-00000-of-00001.arrow"
        target.parent.mkdir(exist_ok=True)
        write = pyarrow.ipc.new_file if kind == "feather" else pyarrow.ipc.new_stream
        with pyarrow.OSFile(str(target), "wb") as handle, write(handle, table.schema) as stream:
            stream.write_table(table)
    assert read_captions(file).captions == WANTED
    if kind == "folder":  # a copy that datasets keeps, and the names of the hub's files
        shutil.copy(target, file / "cache-0123456789abcdef.arrow")
        assert read_captions(file).captions == WANTED
        shutil.copy(target, file / "test-00000-of-00001.arrow")
        with pytest.raises(InputError, match="holds the splits data, test: give a file of each"):
            read_captions(file)
    marked = pyarrow.table({"image": ["a.jpg", "b.jpg"], "text": ["one", "two"], "split": [0, 1]})
    parquet.write_table(marked, tmp_path / "marked.parquet")
    with pytest.raises(InputError, match="holds the splits 0, 1"):
        read_captions(tmp_path / "marked.parquet")
    nameless = pyarrow.table({"image": [{"bytes": b"x", "path": None}], "text": ["a dog"]})
    parquet.write_table(nameless, tmp_path / "x.parquet")
    with pytest.raises(InputError, match="has no names of images"):
        read_captions(tmp_path / "x.parquet")


def test_without_pyarrow_a_line_says_how_to_convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install pyarrow; or make a CSV of it elsewhere.*to_csv"):
        read_captions(tmp_path / "captions.parquet")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.csv", b"image,caption\n", "has no names of images with captions"),
        ("x.csv", b"where,text\na.jpg,b\n", "no column of images among where, text: name one of them 'image'"),
        ("x.csv", b"\xff\xfe", "should be UTF-8 text"),
        ("x.jsonl", b'{"image": "a.jpg", "caption": "b"}\n{\n', "line 2 is not valid JSON"),
        ("x.jsonl", b'{"image": "a.jpg", "caption": 5}', "the caption of a.jpg is 5, which is not text"),
        ("x.json", b'[{"image": "a.jpg", "caption": [{"id": 1}]}]', r"a.jpg is \[{'id': 1}\], which is not text"),
        ("x.json", b'[{"image": {"bytes": "b"}, "caption": "b"}]', "an image is .*: give the name of its file"),
        ("x.jsonl", b'{"image": "a", "text": "b", "split": "train"}\n{"image": "b", "text": "b", "split": "val"}',
         "holds the splits train, val: give a file of each"),
        ("x.csv", b"image,caption,split\na,b,test\nb,b,train\n", "holds the splits test, train"),
        ("x.json", b'[{"image": "a.jpg", "caption": ["b", NaN]}]', "which is not text"),
        ("x.csv", b'image,caption\na.jpg,"b' + b"x" * 140_000, r"up to line \d+: field larger than .*quote"),
        ("x.csv", b'image,caption\na.jpg,"a star\nb.jpg,a dog\n', "up to line 3: unexpected end of data; is a quote"),
        ("x.json", b'{"images": [], "annotations": [{}]}', "is not COCO's JSON"),
        ("x.json", b'{"annotations": [{"image_id": 1, "caption": "a"}]}', "is not COCO's JSON"),
    ],
)  # fmt: skip
def test_bad_caption_files_are_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words) as raised:
        read_captions(tmp_path / name)
    assert "\n" not in str(raised.value)


# --- captions of a sample in a shard ---


def captions_of(sample: dict[str, bytes], **keys: object) -> list[str]:
    return PairKeys(**keys).parse(sample, "0.tar:s1").texts


def test_captions_of_a_sample_come_from_its_txt_or_json() -> None:
    assert captions_of({"txt": "\ufeffa dog\r\n\n  a cat \n".encode()}) == ["a dog", "a cat"]
    assert captions_of({"json": b'{"caption": "a dog"}'}) == ["a dog"]
    assert captions_of({"json": b'{"caption": ["a dog", " ", "a cat"]}'}) == ["a dog", "a cat"]
    both = {"txt": b"from txt", "json": b'{"caption": "from json", "alt": "other"}'}
    assert captions_of(both) == ["from txt"]
    assert captions_of(both | {"txt": b" \n"}) == ["from json"]
    assert captions_of(both, caption_key="alt") == ["other"]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_a_caption_ends_at_a_line_feed_alone(mark: str) -> None:
    text = f"a cat{mark}on a mat"
    assert captions_of({"txt": f"{text}\na dog".encode()}) == [text, "a dog"]


def test_a_text_of_several_paragraphs_may_be_one_caption() -> None:
    sample = {"txt": b"a dog\n\nruns\n"}
    assert captions_of(sample) == ["a dog", "runs"]
    assert captions_of(sample, captions="whole") == ["a dog\n\nruns"]
    with pytest.raises(InputError, match="an empty caption"):
        captions_of({"txt": b"\n"}, captions="whole")


def test_keys_of_a_json_are_drawn_by_their_weights() -> None:
    sample = {"txt": b"no", "json": b'{"alt": ["one", "two"], "long": "three", "none": null}'}
    captions = PairKeys(caption_key={"long": 0.75, "alt": 0.25, "none": 5, "other": 5}).parse(sample, "x")
    drawn = Counter(captions.draw(number * 2**25) for number in range(128))
    assert drawn == {"three": 96, "one": 16, "two": 16}
    assert captions.draw(2**32 - 1) == "two"
    with pytest.raises(
        InputError, match=r"no key 'a' or 'b' in its \.json, but alt, long, none: name the key"
    ):
        PairKeys(caption_key={"a": 1, "b": 1}).parse(sample, "x")


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
        captions_of(sample)
    assert str(raised.value).startswith("0.tar:s1 has ")
    assert words in str(raised.value)

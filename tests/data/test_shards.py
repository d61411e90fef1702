import bz2
import gzip
import lzma
import os
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from given import write_shard
from made_sets import EVERY, tar_of

from diffclip.data import index
from diffclip.data.index import index_files, open_index, open_indexes, read_index, scan, stamp
from diffclip.data.pairs import PairKeys
from diffclip.data.shards import expand_shards
from diffclip.data.tar_set import TarSample, TarSet
from diffclip.errors import InputError


def members_of(path: Path) -> list[tarfile.TarInfo]:
    with tarfile.open(path) as tar:
        return tar.getmembers()


def open_tars(*paths: Path) -> TarSet:
    return TarSet(list(paths), EVERY)


def contents(sample: TarSample) -> dict[str, bytes]:
    return sample.read(*EVERY.labels)


def one_line(raised: pytest.ExceptionInfo[InputError]) -> str:
    assert "\n" not in str(raised.value)
    return str(raised.value)


# --- naming shards ---


def test_shards_expand_from_ranges_folders_files_and_patterns(tmp_path: Path) -> None:
    names = ["0.tar", "1.tar", "2.tar", "10.tar"]
    (tmp_path / "a").mkdir()
    for name in (*names, "notes.txt", "._0.tar", "a/008.tar", "a/009.tar", "a/010.tar"):
        (tmp_path / name).touch()
    shards = [tmp_path / name for name in names]
    assert expand_shards(str(tmp_path)) == shards
    assert expand_shards(f"{tmp_path}/{{0..2}}.tar") == shards[:3]
    assert expand_shards(f"{tmp_path}/{{0,10}}.tar") == [shards[0], shards[3]]
    assert expand_shards(f"{tmp_path}/1*.tar") == [shards[1], shards[3]]
    padded = expand_shards(f"{tmp_path}/a/{{008..010}}.tar")
    assert [path.name for path in padded] == ["008.tar", "009.tar", "010.tar"]
    assert expand_shards(f"{tmp_path}/{{a,}}") == [*padded, *shards]


def test_bad_shard_names_raise_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "0.tar").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "0.tar.gz").touch()
    (tmp_path / "above" / "train").mkdir(parents=True)
    (tmp_path / "above" / "train" / "0.tar").touch()
    for spec, words in (
        ("", "does not exist"),
        (f"{tmp_path}/{{0..3}}.tar", f"1.tar does not exist, one of 3 missing in {tmp_path}/{{0..3}}.tar"),
        (f"{tmp_path}/x*.tar", "does not exist"),
        (f"{tmp_path}/{{0..3.tar", "unpaired braces"),
        (f"{tmp_path}/empty", "no .tar shards in folder"),
        (f"{tmp_path}/packed", "it has 0.tar.gz, unpack it to a .tar"),
        (f"{tmp_path}/above", f"its folder train has some, give {tmp_path}/above/train"),
        ("pipe:aws s3 cp s3://b/0.tar -", "commands are not run, give the address that it reads"),
    ):
        with pytest.raises(InputError) as raised:
            expand_shards(spec)
        assert words in one_line(raised)


# --- reading samples ---


def test_keys_and_endings_are_grouped_as_by_webdataset(tmp_path: Path) -> None:
    files = {"__meta__/x.txt": b"no sample", "README": b"no ending", "a/b.c/img.seg.PNG": b"1"}
    files |= {"a/b.c/img.txt": b"2", "img.cls": b"3", "./c.json": b"4"}
    path = tar_of(tmp_path / "0.tar", files.items())
    shards = open_tars(path)
    ours = [(shards[i].key, contents(shards[i])) for i in range(len(shards))]
    assert ours == [
        ("a/b.c/img", {"txt": b"2", "seg.png": b"1"}),
        ("img", {"cls": b"3"}),
        ("c", {"json": b"4"}),
    ]
    webdataset = pytest.importorskip("webdataset")
    theirs = []
    for sample in webdataset.WebDataset(str(path), shardshuffle=False):
        found = {ending: data for ending, data in sample.items() if not ending.startswith("__")}
        theirs.append((sample["__key__"].removeprefix("./"), found))
    assert ours == theirs


def pairs_in(folder: Path, names: str, **keys: object) -> tuple[dict[str, str], list[str]]:
    """Write the members `names` into a shard; return the text of each pair by its image's name, and the faults. A
    member's content is its name; a text is the name of its image."""
    path = tar_of(folder / "0.tar", ((name, name.encode()) for name in names.split()))
    members = PairKeys(**keys).members()
    shards = TarSet(path, members)
    found = [shards[i].read(*members.labels) for i in range(len(shards))]
    texts = {pair["image"].decode(): (pair.get("txt") or pair["json"]).decode() for pair in found}
    return texts, [str(fault).removeprefix(f"{path}") for fault in shards.notes + shards.faults]


SAME = {"a.jpg": "a.txt", "b.jpg": "b.txt"}


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        ("._a.jpg a.jpg ._a.txt a.txt ._b.jpg b.jpg b.txt", SAME),  # made on macOS
        ("a.jpg __MACOSX/._a.jpg a.txt b.jpg .DS_Store b.txt", SAME),
        ("d/a.jpg d/._a.jpg d/a.txt", {"d/a.jpg": "d/a.txt"}),
        ("d/a.jpg d/@eaDir/a.jpg d/Thumbs.db .hidden/a.jpg d/a.txt", {"d/a.jpg": "d/a.txt"}),
        ("a.jpg b.jpg a.txt b.txt", SAME),
        ("b.txt a.jpg a.txt b.jpg", SAME),
        ("i/a.jpg i/b.jpg t/b.txt t/a.txt", {"i/a.jpg": "t/a.txt", "i/b.jpg": "t/b.txt"}),
        ("i/x/a.jpg i/y/a.jpg t/x/a.txt t/y/a.txt", {"i/x/a.jpg": "t/x/a.txt", "i/y/a.jpg": "t/y/a.txt"}),
        ("x/i/a.jpg y/i/a.jpg x/t/a.txt y/t/a.txt", {"x/i/a.jpg": "x/t/a.txt", "y/i/a.jpg": "y/t/a.txt"}),
        ("i/a.jpg a.txt ./b.jpg b.txt", {"i/a.jpg": "a.txt", "./b.jpg": "b.txt"}),
        ("i\\a.jpg t\\a.txt", {"i\\a.jpg": "t\\a.txt"}),  # written on Windows
        ("\u00e9.jpg e\u0301.txt", {"\u00e9.jpg": "e\u0301.txt"}),  # one name in two forms of Unicode
    ],
)  # fmt: skip
def test_members_of_a_sample_are_joined_wherever_they_are(tmp_path, names, pairs) -> None:
    assert pairs_in(tmp_path, names) == (pairs, [])


def test_a_text_that_fits_several_images_is_not_joined(tmp_path) -> None:
    texts, faults = pairs_in(tmp_path, "x/a.jpg y/a.png t/a.txt x/b.jpg t/b.txt")
    assert texts == {"x/b.jpg": "t/b.txt"}
    assert faults == [":x/a has no caption", ":y/a has no caption", ":t/a has no image"]


def test_a_key_that_is_there_twice_is_named(tmp_path) -> None:
    texts, faults = pairs_in(tmp_path, "a.jpg a.txt b.jpg b.txt a.JPG a.txt c.jpg c.jpg c.txt")
    assert texts == {"a.jpg": "a.txt", "b.jpg": "b.txt", "a.JPG": "a.txt", "c.jpg": "c.txt"}
    assert faults == [" holds 2 keys more than once, the first: 'a'", ":c has no caption"]


def test_endings_may_be_named_by_lists_and_patterns(tmp_path) -> None:
    names = "a.rgb.jpg a.depth.jpg a.caption.txt a.txt"
    rgb = {"a.rgb.jpg": "a.caption.txt"}
    assert pairs_in(tmp_path, names, image_key="rgb.jpg", text_key=["text", ".caption.txt"])[0] == rgb
    assert pairs_in(tmp_path, names, image_key="png;rgb.*", text_key="cap*")[0] == rgb
    dotted = "p.1.jpg p.1.txt p.2.jpg p.2.txt q.v1.jpg q.v1.txt"
    with pytest.raises(
        InputError, match=r"p has no image and no caption, but \.1\.jpg, .* at the first dot .*image_key"
    ):
        pairs_in(tmp_path, dotted)
    pairs = {name: name.replace("jpg", "txt") for name in ("p.1.jpg", "p.2.jpg", "q.v1.jpg")}
    assert pairs_in(tmp_path, dotted, image_key="*.jpg", text_key="*.txt") == (pairs, [])
    texts, [fault] = pairs_in(tmp_path, "p.jpg p.txt p.2.jpg p.2.txt")
    assert texts == {"p.jpg": "p.txt"}
    assert "holds 1 more images with a caption, in longer endings: an ending starts at the first dot" in fault


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_and_non_ascii_names_are_read(tmp_path: Path, kind: int) -> None:
    name = f"{'folder/' * 30}Äpfel-{'x' * 120}"
    (tmp_path / "content").write_bytes(b"hello")
    with tarfile.open(tmp_path / "0.tar", "w", format=kind) as tar:
        tar.add(tmp_path / "content", f"{name}.txt")
        tar.add(tmp_path, "folder", recursive=False)
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "content"
        tar.addfile(link)
    shards = open_tars(tmp_path / "0.tar")
    assert (len(shards), contents(shards[0])) == (1, {"txt": b"hello"})
    assert shards.name(0) == f"{tmp_path / '0.tar'}:{name}"
    assert shards.faults == []


def test_links_and_sparse_files_in_a_shard_are_named(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.jpg").write_bytes(b"an image")
    (files / "b.jpg").hardlink_to(files / "a.jpg")
    (files / "c.jpg").symlink_to("a.jpg")
    with (files / "d.jpg").open("wb") as file:
        file.truncate(1 << 20)
    for key in "abcd":
        (files / f"{key}.txt").write_text(key)
    path = tmp_path / "0.tar"
    subprocess.run(["tar", "--sparse", "-cf", path, "--sort=name", "-C", files, "."], check=True)
    shards = TarSet(path, PairKeys().members())
    assert [shards[i].key for i in range(len(shards))] == ["a"]
    [note] = shards.notes
    assert "holds 3 links or sparse files, which are not read, the first: 'b.jpg': pack" in note.reason
    assert [str(fault) for fault in shards.faults] == [f"{path}:{key} has no image" for key in "bcd"]


# --- broken shards ---


def test_a_truncated_shard_keeps_its_whole_samples(tmp_path: Path) -> None:
    whole = write_shard(tmp_path / "whole.tar", 6)
    expected = {i: contents(open_tars(whole)[i]) for i in range(6)}
    data = whole.read_bytes()
    end = members_of(whole)[-1].offset_data + 512
    cut = tmp_path / "cut.tar"
    for length in range(1, end + 1, 513):
        cut.write_bytes(data[:length])
        tar = open_index(cut)
        assert any(words in tar.header.faults[0] for words in ("is cut short", "is not a tar")), length
        if len(tar.rows):
            shards = open_tars(cut)
            for i in range(len(shards)):
                sample = contents(shards[i])
                assert all(expected[i][ext] == member for ext, member in sample.items()), length
            assert len(shards) >= max(0, length * 6 // end - 1)
    cut.write_bytes(data[:end])
    assert len(open_tars(cut)) == 6


def test_zeros_damage_or_another_tar_in_a_shard_give_a_fault(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "0.tar", 5)
    data, header = path.read_bytes(), members_of(path)[6].offset
    for content, count, is_whole in (
        (data[:header] + bytes(len(data) - header + (1 << 20)), 3, False),
        (data[:header] + b"\xa5" * 300 + data[header + 300 :], 3, False),
        (data + data, 5, False),
        (data + bytes(1 << 19), 5, True),  # some writers pad more than others
    ):
        path.write_bytes(content)
        shards = open_tars(path)
        assert (len(shards), not shards.faults) == (count, is_whole)
        assert is_whole or f" of {len(content)}, {count} samples before it kept" in str(shards.faults[0])


@pytest.mark.parametrize("size", [-1, -512, -1024, 2**50, 2**70])
def test_a_header_with_an_impossible_size_ends_the_reading(size, tmp_path) -> None:
    path = write_shard(tmp_path / "0.tar", 5)
    data, header = bytearray(path.read_bytes()), members_of(path)[6].offset
    # base 256, as GNU tar writes it
    data[header + 124 : header + 136] = (size % 256**12 | 1 << 95).to_bytes(12)
    data[header + 148 : header + 156] = b" " * 8
    data[header + 148 : header + 156] = b"%06o\0 " % sum(data[header : header + 512])
    path.write_bytes(data)
    shards = open_tars(path)
    assert len(shards) == 3
    assert ", 3 samples before it kept" in str(shards.faults[0])


def test_shards_without_any_sample_raise_input_error(tmp_path: Path) -> None:
    empty, text, packed = tmp_path / "empty.tar", tmp_path / "text.tar", tmp_path / "packed.tar"
    empty.touch()
    text.write_text("this is no tar " * 100)
    good = write_shard(tmp_path / "good.tar", 2)
    packed.write_bytes(gzip.compress(good.read_bytes()))
    (tmp_path / "bz.tar").write_bytes(bz2.compress(good.read_bytes()))
    (tmp_path / "xz.tar").write_bytes(lzma.compress(good.read_bytes()))
    for path, words in (
        (empty, "is empty (0 bytes)"),
        (text, "is not a tar"),
        (packed, "is compressed: unpack it with gunzip"),
        (tmp_path / "bz.tar", "is compressed: unpack it with bunzip2"),
        (tmp_path / "xz.tar", "is compressed: unpack it with unxz"),
        (tar_of(tmp_path / "none.tar", []), "no sample in"),
        (
            tar_of(tmp_path / "bare.tar", [("a", b"1")]),
            "has no file that is named KEY.ENDING, the first is 'a'",
        ),
    ):
        with pytest.raises(InputError) as raised:
            open_tars(path)
        assert words in one_line(raised)
        assert str(path) in one_line(raised)
    shards = open_tars(empty, text, good, packed)
    assert len(shards) == 2
    assert [fault.name for fault in shards.faults] == [str(empty), str(text), str(packed)]


# --- indexes ---


def test_an_index_is_kept_in_the_cache_or_beside_the_shard_and_checked(
    tmp_path: Path, cache_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_shard(tmp_path / "0.tar", 4)
    open_index(path)
    [index_file] = (cache_home / "diffclip" / "indexes").glob("*/*")
    assert os.listdir(tmp_path) == ["0.tar"]
    # a file of the same size with another modification time is another shard
    write_shard(path, 4, start=4)
    later = time.time_ns() + 10**9
    os.utime(path, ns=(later, later))
    assert open_index(path).rows["key"][0] == b"s0000004"
    for damage in (b"damaged", index_file.read_bytes()[:400], b""):
        index_file.write_bytes(damage)
        assert open_index(path).rows["key"][0] == b"s0000004"
    path.write_bytes(path.read_bytes()[:4000])
    header = open_index(path).header
    assert header.faults
    monkeypatch.setattr(index, "scan", lambda path: pytest.fail(f"{path} is scanned"))
    assert open_index(path).header == open_indexes([path], tables=False)[path].header == header
    open_tars(tmp_path).keep_indexes()
    index_file.unlink()
    assert open_index(path).header == header


def test_an_unwritable_cache_folder_does_not_stop_indexing(tmp_path, cache_home) -> None:
    (cache_home / "diffclip").write_text("a file where the folder should be")
    assert len(open_index(write_shard(tmp_path / "0.tar", 4)).rows) == 4


def test_many_shards_are_scanned_by_several_processes(tmp_path, capsys) -> None:
    paths = [write_shard(tmp_path / f"{n}.tar", 1 + n % 3, start=n) for n in range(20)]
    headers = {path: tar.header for path, tar in open_indexes(paths).items()}
    assert headers == {path: scan(path).header for path in paths}
    assert capsys.readouterr().err.splitlines() == ["diffclip: indexing 20 shards, once"]
    assert read_index(paths[3], index_files(paths[3])[1], stamp(paths[3])) is not None

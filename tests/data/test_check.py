import json
import sys
from pathlib import Path

import numpy as np
import pytest
from odd_shards import LONG, encoded, smooth_picture, write_odd_shards, write_shard_of

from diffclip.data.check import Check, check, spread
from diffclip.data.check_scan import Scan
from diffclip.data.check_summary import clean, headline, rows, share
from diffclip.data.corpus import open_corpus
from diffclip.errors import InputError

pytest.importorskip("imagehash")


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_odd_shards(tmp_path_factory.mktemp("odd") / "shards")


@pytest.fixture(scope="module")
def found(odd: Path) -> tuple[Check, Scan]:
    return check(open_corpus(str(odd)))


def keys(names: list[str]) -> list[str]:
    return [name.rpartition(":")[2] for name in names]


def test_what_is_there_and_what_is_broken(found: tuple[Check, Scan], odd: Path) -> None:
    result, scan = found
    assert (result.usable, result.read, result.whole) == (44, 44, 42)
    assert len(scan) == 42
    assert (result.seed, result.sources) == (None, [str(odd)])
    assert keys([fault.name for fault in result.lacking]) == ["bare", "blind"]
    assert [fault.reason for fault in result.lacking] == ["has no caption", "has no picture"]
    assert result.lacks == 2
    assert keys([fault.name for fault in result.unreadable_pictures]) == ["cut"]
    assert "cut short or broken" in result.unreadable_pictures[0].reason
    assert keys([fault.name for fault in result.unreadable_captions]) == ["latin"]
    assert result.unreadable_captions[0].reason == "has a caption that is not UTF-8 text"


def test_shards_and_how_even_they_are(found: tuple[Check, Scan], odd: Path) -> None:
    shards = found[0].shards
    assert shards.count == 4
    assert [str(fault) for fault in shards.broken] == [f"{odd / '3.tar'} is empty (0 bytes)"]
    assert (shards.samples["min"], shards.samples["max"], shards.samples["mean"]) == (0, 21, 11)
    assert (shards.smallest, shards.largest) == (str(odd / "2.tar"), str(odd / "1.tar"))
    assert shards.uneven == [(str(odd / "2.tar"), 3)]


def test_pictures(found: tuple[Check, Scan], odd: Path) -> None:
    pictures = found[0].pictures
    assert (pictures.shorter_edge["min"], pictures.shorter_edge["median"], pictures.width["max"]) == (
        40,
        90,
        300,
    )
    assert pictures.aspect["max"] == pytest.approx(300 / 90)
    assert (pictures.small, pictures.one_colour) == (42, 2)
    assert pictures.total_size == found[1].size.sum()
    assert pictures.size["min"] < 200 < pictures.size["median"]


def test_captions(found: tuple[Check, Scan]) -> None:
    captions = found[0].captions
    # one of the 42 has two
    assert (captions.count, captions.different) == (43, 41)
    assert captions.repeated == [("stock photo", 3)]
    assert captions.words["max"] == len(LONG.split())
    # start, four words 25 times, two, end
    assert captions.tokens["max"] == 104
    assert captions.tokens["min"] == 4
    assert (captions.context_length, captions.truncated) == (77, 1)


def test_tokens_are_the_tokenizers(odd: Path) -> None:
    result, scan = check(open_corpus(str(odd)), context_length=104)
    assert result.captions.truncated == 0
    assert check(open_corpus(str(odd)), context_length=103)[0].captions.truncated == 1
    # "picture number 0" and those of two digits
    assert scan.tokens[:11].tolist() == [5] * 10 + [6]


def test_languages_are_guessed(found: tuple[Check, Scan]) -> None:
    pytest.importorskip("py3langid")
    captions = found[0].captions
    assert captions.guessed == 43
    assert captions.languages is not None
    assert sum(captions.languages.values()) == 43
    assert next(iter(captions.languages)) == "en"
    assert captions.languages["fr"] >= 1


def test_duplicates(found: tuple[Check, Scan]) -> None:
    result = found[0]
    assert result.exact.pictures == 1
    assert [keys(group) for group in result.exact.groups] == [["s01", "twin"]]
    assert result.near is not None
    assert result.near.pictures == 2
    assert [keys(group) for group in result.near.groups] == [["s02", "small", "worse"]]


def test_workers_find_the_same(found: tuple[Check, Scan], odd: Path) -> None:
    told: list[int] = []
    result, scan = check(open_corpus(str(odd)), workers=2, advance=told.append)
    assert result == found[0]
    assert sum(told) == 44
    for name, values in vars(found[1]).items():
        if isinstance(values, np.ndarray):
            np.testing.assert_array_equal(getattr(scan, name), values)


def test_many_chunks_keep_captions_with_their_samples(tmp_path: Path) -> None:
    picture = encoded(smooth_picture(0, (8, 8)))
    samples = [(f"{i:03d}", {"jpg": picture, "txt": b"\n".join([b"word"] * (1 + i % 3))}) for i in range(300)]
    write_shard_of(tmp_path / "0.tar", samples)
    _, scan = check(open_corpus(str(tmp_path)), workers=1)
    assert np.bincount(scan.owner).tolist() == [1 + i % 3 for i in range(300)]


def test_a_sample_is_drawn_by_the_seed(odd: Path) -> None:
    first, scan = check(open_corpus(str(odd)), sample=10, seed=3)
    again, same = check(open_corpus(str(odd)), sample=10, seed=3)
    other, others = check(open_corpus(str(odd)), sample=10, seed=4)
    assert (first.usable, first.read, first.seed) == (44, 10, 3)
    assert first == again
    assert scan.number.tolist() == same.number.tolist() != others.number.tolist()
    assert check(open_corpus(str(odd)), sample=1000)[0].seed is None
    assert headline(first).startswith(
        ("All 10 samples drawn from 44", f"{first.whole} of 10 samples drawn from 44")
    )
    assert dict(rows(other))["read"] == "10, drawn with seed 4"


def test_captions_may_be_in_json(tmp_path: Path) -> None:
    picture = encoded(smooth_picture(0))
    samples = [
        ("a", {"jpg": picture, "json": json.dumps({"texts": ["one two", "three"]}).encode()}),
        ("b", {"jpg": picture, "json": b'{"texts": "\\ud800 odd"}'}),
        ("c", {"jpg": picture, "json": b"{}"}),
    ]
    write_shard_of(tmp_path / "0.tar", samples)
    result, _ = check(open_corpus(str(tmp_path), caption_key="texts"))
    assert (result.captions.count, result.whole) == (3, 2)
    assert result.unreadable_captions[0].reason == "has no key 'texts' in its .json"


def test_without_the_libraries(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imagehash", None)
    monkeypatch.setitem(sys.modules, "py3langid", None)
    result, _ = check(open_corpus(str(odd)))
    assert result.near is None
    assert result.captions.languages is None
    assert result.exact.pictures == 1
    told = dict(rows(result))
    assert (
        told["looks like another"] == told["languages"] == "not looked for: run pip install 'diffclip[data]'"
    )


def test_nothing_to_train_on(tmp_path: Path) -> None:
    write_shard_of(tmp_path / "0.tar", [(f"{i}", {"jpg": b"no picture", "txt": b"a"}) for i in range(3)])
    with pytest.raises(
        InputError, match=r"not one of 3 samples of .* can be trained on, the first: .*:0 is not a picture"
    ):
        check(open_corpus(str(tmp_path)))


def test_all_of_it_is_json(found: tuple[Check, Scan]) -> None:
    content = json.loads(json.dumps(found[0].to_json()))
    assert content["unreadable_pictures"][0]["name"].endswith("1.tar:cut")
    assert content["near"]["groups"][0][0].endswith("0.tar:s02")
    assert content["captions"]["tokens"]["median"] == 6


def test_in_words(found: tuple[Check, Scan]) -> None:
    told = dict(rows(found[0]))
    assert headline(found[0]) == "42 of 44 samples can be trained on (95.5 %)."
    assert told["shards"] == "4 with 0 to 21 samples, median 12; 1 faults"
    assert told["samples with picture and caption"] == "44; 2 lack one or the other"
    assert told["same file as another"] == "1 (2.4 %), 1 group"
    assert told["looks like another"] == "2 (4.8 %), 1 group (pHash, 4 bits of 64)"
    assert told["cut at 77 tokens"] == "1 (2.3 %)"
    assert told["shorter edge"].endswith("below 224: 42 (100 %)")


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "0 %"),
        (0, 7, "0 %"),
        (7, 7, "100 %"),
        (1, 3, "33 %"),
        (1, 50, "2.0 %"),
        (1, 1000, "0.10 %"),
        (999_999, 1_000_000, "99.9999 %"),
    ],
)
def test_shares_do_not_round_something_to_nothing(part: int, whole: int, text: str) -> None:
    assert share(part, whole) == text


def test_spreads_and_odd_characters() -> None:
    assert spread([3])["mean"] == 3
    assert spread(list(range(101)))["95 %"] == 95
    assert clean("a\udcff\ud800 é") == "a?? é"

import pickle
from pathlib import Path

import pytest
from made_sets import write_picture
from PIL import Image

from diffclip.data.sources import DatasetSource, FileSource, labels_of
from diffclip.errors import InputError


class Plain:
    """Items without any list of files or labels."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> tuple[Image.Image, int]:
        if i == 2:
            raise SyntaxError("broken PNG file\nmore")
        return Image.new("L", (4 + i, 3), 200), 7 * i


class Listed(Plain):
    labels = (1, 2, 3)
    target_transform = staticmethod(lambda label: label - 1)


def test_labels_are_taken_from_the_list_that_is_kept() -> None:
    assert labels_of(Listed()) == [0, 1, 2]
    one, two = Plain(), Plain()
    one.targets = [5, 6, 7]
    assert labels_of(one) == [5, 6, 7]
    with pytest.raises(SyntaxError):
        labels_of(two)


def test_labels_are_read_where_no_list_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plain, "__len__", lambda _: 2)
    assert labels_of(Plain()) == [0, 7]


def test_pictures_of_a_data_set(tmp_path: Path) -> None:
    source = DatasetSource(Plain(), tmp_path)
    assert (len(source), str(source), source.key(1)) == (3, str(tmp_path), "0000001")
    picture = source.image(1)
    assert (picture.mode, picture.size, picture.getpixel((0, 0))) == ("RGB", (5, 3), (200, 200, 200))
    with pytest.raises(InputError, match=r":2 is missing, cut short or broken \(broken PNG file more\)$"):
        source.image(2)


def test_files(tmp_path: Path) -> None:
    write_picture(tmp_path / "a" / "one.png", 1)
    (tmp_path / "a" / "empty.png").touch()
    source = FileSource(tmp_path, ["a/one.png", "a/empty.png", "a/none.png"])
    assert (len(source), source.key(0), source.name(0)) == (3, "a/one.png", str(tmp_path / "a" / "one.png"))
    copy = pickle.loads(pickle.dumps(source))
    assert copy.image(0).tobytes() == source.image(0).tobytes()
    for i, words in ((1, "is empty"), (2, "does not exist")):
        with pytest.raises(InputError, match=words):
            source.image(i)
    first = source.identity()
    assert copy.identity() == first
    write_picture(tmp_path / "a" / "none.png")
    assert FileSource(tmp_path, source.files).identity() != first

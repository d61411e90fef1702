import pickle
from pathlib import Path

import pytest
from made_sets import write_picture
from PIL import Image

from diffclip.data.evaluation_set import FolderSource
from diffclip.errors import InputError


class Plain:
    """Items as torchvision's data sets have them; the last cannot be read."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> tuple[Image.Image, int]:
        if i == 2:
            raise SyntaxError("broken PNG file\nmore")
        return Image.new("L", (4 + i, 3), 200), 7 * i


def test_images_of_a_data_set(tmp_path: Path) -> None:
    source = FolderSource(tmp_path, ["0", "1", "2"], Plain())
    assert (len(source), str(source), source.key(1)) == (3, str(tmp_path), "1")
    image = source.image(1)
    assert (image.mode, image.size, image.getpixel((0, 0))) == ("RGB", (5, 3), (200, 200, 200))
    with pytest.raises(InputError, match=r"/2 is missing, cut short or broken \(broken PNG file more\)$"):
        source.image(2)


def test_files(tmp_path: Path) -> None:
    write_picture(tmp_path / "a" / "one.png", 1)
    (tmp_path / "a" / "empty.png").touch()
    source = FolderSource(tmp_path, ["a/one.png", "a/empty.png", "a/none.png"])
    assert (len(source), source.key(0), source.name(0)) == (3, "a/one.png", str(tmp_path / "a" / "one.png"))
    copy = pickle.loads(pickle.dumps(source))
    assert copy.image(0).tobytes() == source.image(0).tobytes()
    for i, words in ((1, "is empty"), (2, "does not exist")):
        with pytest.raises(InputError, match=words):
            source.image(i)
    first = source.identity
    assert copy.identity == first
    write_picture(tmp_path / "a" / "none.png")
    assert FolderSource(tmp_path, source.keys).identity != first

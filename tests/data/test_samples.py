from collections.abc import Callable

import numpy as np
import pytest

from diffclip.data.samples import captions_of, image_of, pixels_of
from diffclip.errors import InputError


def test_captions() -> None:
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
        ({"txt": b""}, "an empty caption"),
        ({"txt": b" \n\n"}, "an empty caption"),
        ({"json": b'{"caption": ""}'}, "an empty caption"),
        ({"json": b'{"caption": []}'}, "an empty caption"),
        ({"txt": b"\xff\xfe\xfa"}, "not UTF-8"),
        ({"json": b"{"}, "not valid JSON"),
        ({"json": b"[" * 100_000}, "not valid JSON"),
        ({"json": b'{"text": "a"}'}, "no key 'caption'"),
        ({"json": b'{"caption": 3}'}, "no string or strings as 'caption'"),
        ({"json": b'{"caption": null}'}, "no string or strings as 'caption'"),
        ({"json": b'{"caption": ["a", 1]}'}, "no string or strings as 'caption'"),
        ({"json": b"[1]"}, "no string or strings as 'caption'"),
    ],
)
def test_bad_captions(sample: dict[str, bytes], words: str) -> None:
    with pytest.raises(InputError) as raised:
        captions_of(sample, "0.tar:s1")
    assert str(raised.value).startswith("0.tar:s1 has ")
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("extension", "kind"), [("jpg", "JPEG"), ("jpeg", "JPEG"), ("png", "PNG"), ("webp", "WEBP")]
)
def test_pictures(extension: str, kind: str, picture: Callable[..., bytes]) -> None:
    sample = {extension: picture(0, kind), "mask.png": b"x"}
    read, pixels = image_of(sample, "x"), pixels_of(sample, "x")
    assert read.size == (12, 10)
    assert np.array_equal(pixels.permute(1, 2, 0), read)


def test_bad_pictures() -> None:
    for sample in ({"txt": b"x", "mask.png": b"x"}, {"jpg": b"x"}):
        for read in (image_of, pixels_of):
            with pytest.raises(InputError, match=r"^0\.tar:s1 "):
                read(sample, "0.tar:s1")

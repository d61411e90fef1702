import io
import os
import struct
import sys
import types
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from made_sets import encoded, noise, photograph, png_by_hand, png_chunk
from PIL import Image

from diffclip.data.images import MAX_PIXELS, _add_format, find_images, image_files, read_image, read_pixels
from diffclip.errors import InputError


def pixels(data: bytes) -> list[list[list[int]]]:
    image = read_image(data)
    assert image.mode == "RGB"
    return np.asarray(image).tolist()


def one_line(raised: pytest.ExceptionInfo[InputError]) -> str:
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_gray_of_more_than_8_bits_is_scaled_and_not_clipped() -> None:
    values = np.array([[0, 257, 32768, 65535, 300]], dtype=np.uint16)
    for kind in ("PNG", "TIFF", "PPM"):
        assert [row[0] for row in pixels(encoded(Image.fromarray(values), kind))[0]] == [0, 1, 128, 255, 1]
    for values in (np.int32([[-1000, 0, 1_000_000]]), np.float32([[np.nan, 0, 1]]), np.float32([[0, 0, 9]])):
        assert [row[0] for row in pixels(encoded(Image.fromarray(values), "TIFF"))[0]] == [0, 0, 255]


def test_cmyk_and_the_first_frame_of_an_animation_are_read_as_rgb() -> None:
    data = encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    assert np.allclose(pixels(data)[8][8], [255, 0, 0], atol=6)
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "lime", "blue")]
    for kind in ("GIF", "PNG"):
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)
        assert pixels(data)[4][4] == [255, 0, 0]


def test_transparent_pixels_are_blended_over_white() -> None:
    image = Image.new("RGBA", (3, 1))
    for x, alpha in enumerate((0, 128, 255)):
        image.putpixel((x, 0), (200, 0, 0, alpha))
    assert pixels(encoded(image, "PNG")) == [[[255, 255, 255], [227, 127, 127], [200, 0, 0]]]
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 50])
    palette.putpixel((1, 0), 1)
    half = pixels(encoded(palette, "PNG", transparency=bytes([255, 128])))
    assert half == [[[10, 20, 30], [227, 177, 152]]]
    # one transparent color of an image without a palette
    gray = png_by_hand(2, 1, b"\0\x00\x50", extra=png_chunk(b"tRNS", b"\0\0"))
    assert pixels(gray) == [[[255] * 3, [80] * 3]]


@pytest.mark.parametrize("orientation", [1, 2, 6])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_exif_orientation_is_applied_once(kind: str, orientation: int) -> None:
    values = np.zeros((16, 32, 3), dtype=np.uint8)
    values[:8, :16] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = {1: values, 2: values[:, ::-1], 6: np.rot90(values, -1)}[orientation]
    decoded = np.asarray(read_image(encoded(Image.fromarray(values), kind, exif=exif)))
    assert decoded.shape == upright.shape
    assert np.abs(decoded.astype(int) - upright).max() < 60


def test_missing_empty_and_other_files_raise_input_error(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("hello, I am no image")
    reasons = {"none.jpg": "does not exist", "empty.jpg": "is empty", "text.jpg": "is not an image"}
    for name, words in (reasons | {"": "cannot be read (Is a directory): give an image file"}).items():
        with pytest.raises(InputError) as raised:
            read_image(tmp_path / name)
        assert words in one_line(raised)
        assert str(tmp_path / name) in one_line(raised)
    with pytest.raises(InputError, match=r"^shard:key is empty"):
        read_image(b"", name="shard:key")
    # PostScript is refused, and no other program is run for it
    for data in (b"nothing", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"):
        with pytest.raises(InputError, match="the image is not an image"):
            read_image(data)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no image"):
        find_images([tmp_path / "empty"])


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM"])
def test_truncated_and_damaged_images_raise_input_error_only(kind: str) -> None:
    whole, random = encoded(noise(0, 32, 24), kind), np.random.default_rng(0)
    for share in (0.3, 0.97):
        with pytest.raises(InputError) as raised:
            read_image(whole[: int(len(whole) * share)], name="cut")
        assert "cut is not an image" in one_line(raised) or "cut is cut short or broken" in one_line(raised)
    for _ in range(60):
        data = bytearray(whole)
        for position in random.integers(len(data), size=4):
            data[position] = random.integers(256)
        with suppress(InputError):
            assert read_image(bytes(data), max_pixels=10**6).mode == "RGB"


def test_an_image_above_the_pixel_limit_is_refused_from_its_header() -> None:
    width = MAX_PIXELS // 10
    with pytest.raises(InputError, match=r"huge\.png is larger than 178 megapixels"):
        read_image(png_by_hand(width, 11, b"", color=2), name="huge.png")
    with pytest.raises(InputError, match=r"is larger than 0 megapixels \(32×24\)"):
        read_image(encoded(noise(0, 32, 24), "PNG"), max_pixels=700)
    # At the limit the size is accepted, and the error is about the missing pixels.
    with pytest.raises(InputError, match="cut short"):
        read_image(png_by_hand(width, 10, b"", color=2))
    jpeg = encoded(noise(0, 32, 24), "JPEG")
    frame = jpeg.index(b"\xff\xc0") + 5
    with pytest.raises(InputError, match="is larger than 178 megapixels"):
        read_pixels(jpeg[:frame] + b"\xff\xff\xff\xff" + jpeg[frame + 4 :])


def test_find_images_searches_folders_and_skips_hidden_files(tmp_path: Path) -> None:
    for name in ("b.JPG", "a.png", "deep/er/c.webp", "deep/notes.txt", ".hidden/d.png", "._e.png", "odd"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    paths = [tmp_path / name for name in ("a.png", "b.JPG", "deep/er/c.webp")]
    assert find_images([tmp_path]) == paths
    assert find_images([str(tmp_path / "odd"), tmp_path, tmp_path / "a.png"]) == [tmp_path / "odd", *paths]
    (tmp_path / "deep" / "link").symlink_to(tmp_path)  # links to folders are not followed
    assert find_images([tmp_path]) == paths
    (tmp_path / "z.jpg").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.jpg")
    # a broken link is kept: the reader gives the reason
    assert sorted(find_images([tmp_path])) == sorted([*paths, tmp_path / "z.jpg"])


def test_kinds_that_are_not_read_are_listed_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pillow_heif", "pi_heif", "pillow_jxl"):
        monkeypatch.setitem(sys.modules, name, None)
    _add_format.cache_clear()
    heic, jxl = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", b"\xff\x0a" + b"\0" * 20
    for name, data in (
        ("a.HEIC", heic),
        ("b.jxl", jxl),
        ("c.CR2", b"II*\0raw"),
        ("d.svg", b"<svg/>"),
        ("e.txt", b"text"),
    ):
        (tmp_path / name).write_bytes(data)
    images = find_images([tmp_path])
    assert [path.name for path in images] == ["a.HEIC", "b.jxl", "c.CR2", "d.svg"]
    for path, words in zip(
        images, ("pip install pillow-heif", "pip install pillow-jxl", "is not an", "is not an"), strict=True
    ):
        with pytest.raises(InputError, match=words):
            read_image(path)
    with pytest.raises(InputError, match=r"^0\.tar:a is HEIF, which pillow-heif reads: pip install"):
        read_pixels(heic, "0.tar:a")


def test_an_installed_package_reads_heic(monkeypatch: pytest.MonkeyPatch) -> None:
    heic = b"\0\0\0\x18ftypheic" + encoded(noise(0))

    def opened(handle: io.BytesIO, name: str) -> Image.Image:
        return Image.open(io.BytesIO(handle.read()[12:]))

    module = types.ModuleType("pillow_heif")
    module.register_heif_opener = lambda: Image.register_open(
        "HEIF", opened, lambda start: start[4:8] == b"ftyp"
    )
    monkeypatch.setitem(sys.modules, "pillow_heif", module)
    _add_format.cache_clear()
    try:
        assert np.array_equal(np.asarray(read_image(heic)), noise(0))
    finally:
        Image.OPEN.pop("HEIF")
        Image.ID.remove("HEIF")
        _add_format.cache_clear()


def test_psd_and_jpeg_2000_are_read_from_files_and_not_from_shards(tmp_path: Path) -> None:
    psd = b"8BPS\0\1" + bytes(6) + b"\0\3" + struct.pack(">IIHH", 2, 2, 8, 3) + bytes(14) + b"\7" * 12
    for name, data in (("a.jp2", encoded(noise(0), "JPEG2000")), ("a.psd", psd)):
        (tmp_path / name).write_bytes(data)
        assert read_image(tmp_path / name).size in ((32, 32), (2, 2))
        for read in (read_image, read_pixels):
            with pytest.raises(InputError, match="is not an image, or of an unknown kind"):
                read(data)


def test_folders_with_links_to_their_parents_end(tmp_path: Path) -> None:
    for name in ("a/b", "c"):
        (tmp_path / name).mkdir(parents=True)
        for link in ("x", "y"):
            (tmp_path / name / link).symlink_to("..")
    (tmp_path / "c" / "to_b").symlink_to(tmp_path / "a" / "b")
    paths = [tmp_path / "a/b/1.png", tmp_path / "c/2.png"]
    for path in paths:
        path.touch()
    assert image_files(tmp_path, follow_links=True) == image_files(tmp_path) == paths


# --- as tensors ---


def agree(data: bytes) -> bool:
    """Check that both readers give the same pixels to within 1 of 255, or the same error; return True for pixels."""
    try:
        expected = np.asarray(read_image(data, "x")).astype(int)
    except InputError as error:
        with pytest.raises(InputError) as raised:
            read_pixels(data, "x")
        assert str(raised.value) == str(error)  # noqa: PT017
        return False
    tensor = read_pixels(data, "x")
    assert tensor.dtype == torch.uint8
    assert tensor.permute(1, 2, 0).is_contiguous()
    assert np.abs(tensor.permute(1, 2, 0).numpy() - expected).max() <= 1
    return True


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data", "ignore:.*TorchVision:DeprecationWarning")
def test_read_pixels_matches_pillow() -> None:
    image, exif = photograph(47, 33, 0), Image.Exif()
    exif[0x0112] = 6
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><r tiff:Orientation="6"/></x:xmpmeta>'
    for options in (
        *({}, {"quality": 30}, {"progressive": True}, {"restart_marker_rows": 1}, {"optimize": True}),
        *({"subsampling": number} for number in range(3)),
        *({"exif": exif}, {"xmp": xmp}, {"exif": b"Exif\0\0II*\0\xff\xff\xff\x7fnonsense"}),
    ):
        assert agree(encoded(image, "JPEG", **options))
    for mode, kind in (("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "PNG"), ("RGBA", "PNG"), ("RGB", "WEBP")):
        assert agree(encoded(image.convert(mode), kind))
    assert agree(encoded(image, "MPO", save_all=True, append_images=[image.rotate(90)]))


def test_damaged_jpegs_are_read_or_refused_as_by_pillow() -> None:
    """Damage: the end cut off, with or without a new end marker; bytes removed, inserted and changed."""
    rng = np.random.default_rng(0)
    readable = []
    for number in range(160):
        data = encoded(photograph(47, 33, number), "JPEG", progressive=number % 2 == 0)
        start, end = sorted(rng.integers(2, len(data), size=2).tolist())
        damaged = (
            data[:start] + (b"\xff\xd9" if number % 3 else b""),
            data[:start] + data[min(end, start + 40) :],
            data[:start] + rng.integers(0, 256, 20, dtype=np.uint8).tobytes() + data[start:],
            data[:start] + bytes([rng.integers(256)]) + data[start + 1 :],
        )[number // 2 % 4]
        readable.append(agree(damaged))
    assert 20 < sum(readable) < 140

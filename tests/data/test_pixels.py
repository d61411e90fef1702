import io
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image, ImageFilter
from torch import Tensor

from diffclip.data.images import MAX_PIXELS, read_image
from diffclip.data.pixels import read_pixels
from diffclip.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:.*TorchVision:DeprecationWarning", "ignore:Corrupt EXIF")

# The two decoders come with their own builds of one library; those we know give the same to the bit.
LEVELS = 2


def encode(picture: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def photograph(height: int = 33, width: int = 47, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    smooth = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)).resize((width, height))
    grain = rng.normal(0, 8, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8))


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


def verdict(data: bytes) -> Tensor | str:
    """What Pillow says: the pixels, or the error."""
    try:
        return torch.from_numpy(np.array(read_image(data, "x"))).permute(2, 0, 1)
    except InputError as error:
        return str(error)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each file had that torchvision's decoder read."""
    sizes: list[int] = []
    decode = torchvision.io.decode_jpeg

    def counted(data: Tensor, *rest: object) -> Tensor:
        image: Tensor = decode(data, *rest)
        sizes.append(len(data))
        return image

    monkeypatch.setattr(torchvision.io, "decode_jpeg", counted)
    return sizes


def same(data: bytes) -> bool:
    pixels, expected = read_pixels(data, "x"), verdict(data)
    assert isinstance(expected, Tensor)
    assert pixels.dtype == torch.uint8
    assert pixels.shape == expected.shape
    return int((pixels.int() - expected.int()).abs().max()) <= LEVELS


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (7, 5), (33, 47), (64, 48)])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"optimize": True}, {"restart_marker_rows": 1}]
)
def test_jpegs_are_what_pillow_reads(
    size: tuple[int, int], subsampling: int, options: dict[str, object], decoded: list[int]
) -> None:
    for quality in (20, 75, 95):
        data = encode(photograph(*size), quality=quality, subsampling=subsampling, **options)
        assert same(data)
    assert len(decoded) == 3


def test_other_ordinary_jpegs(decoded: list[int]) -> None:
    grey, colours = photograph().convert("L"), photograph()
    ordinary = [
        encode(grey),
        encode(grey, progressive=True),
        encode(colours, keep_rgb=True),
        encode(colours, comment=b"a comment", dpi=(72, 72), icc_profile=b"\xff\xd8 a profile " * 6000),
        encode(colours, exif=turned(1)),
        encode(colours, xmp=b"<x:xmpmeta>a title</x:xmpmeta>"),
    ]
    assert all(map(same, ordinary))
    assert len(decoded) == len(ordinary)


def test_pixels_of_a_row_lie_together_whichever_decoder_reads() -> None:
    for data in (encode(photograph()), encode(photograph(), "PNG")):
        assert read_pixels(data).permute(1, 2, 0).is_contiguous()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(orientation: int, decoded: list[int]) -> None:
    big, little = Image.Exif(), Image.Exif()
    big.endian, little.endian = ">", "<"
    for exif in (big, little):
        exif[0x010F] = "a camera"
        exif[0x0112] = orientation
        assert same(encode(photograph(), exif=exif.tobytes()))
    xmp = f'<x:xmpmeta tiff:Orientation="{orientation}"/>'.encode()
    assert same(encode(photograph(), xmp=xmp))
    assert same(encode(photograph(), exif=turned(orientation), xmp=b"<x:xmpmeta/>"))
    assert len(decoded) == (3 if orientation == 1 else 0)


def test_odd_metadata_turns_nothing_that_pillow_does_not_turn() -> None:
    exif = turned(6)
    # one that Pillow does not know for EXIF data, cut short, of another type, twice
    for odd in (b"exif" + exif[4:], exif[:20], exif.replace(b"\0\x03\0\0\0\x01", b"\0\x04\0\0\0\x01")):
        assert same(_with_segments(odd))
    assert same(_with_segments(exif, turned(3)))
    assert same(_with_segments(b"http://ns.adobe.com/xap/1.0/\0<x/>", exif))


def _with_segments(*contents: bytes) -> bytes:
    data = encode(photograph())
    segments = b"".join(b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content for content in contents)
    return data[:2] + segments + data[2:]


def test_everything_else_is_read_by_pillow(decoded: list[int]) -> None:
    picture, cmyk = photograph(), Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    whole = encode(cmyk, quality=95)
    at = whole.index(b"\xff\xee")
    plain = whole[:at] + whole[at + 2 + struct.unpack(">H", whole[at + 2 : at + 4])[0] :]
    others = [whole, plain, encode(picture) + b"trailing", encode(picture)[:-2] + b"\xff\xff\xd9"]
    others += [encode(picture, kind) for kind in ("PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM")]
    others += [encode(picture.convert("RGBA"), "PNG"), encode(picture.convert("P"), "PNG")]
    others += [encode(Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100), "PNG")]
    frames = [picture, picture.filter(ImageFilter.BLUR)]
    others += [encode(frames[0], "MPO", save_all=True, append_images=frames[1:])]
    for data in others:
        assert torch.equal(read_pixels(data), verdict(data))
    assert not decoded


def test_errors_are_those_of_pillow() -> None:
    picture = photograph()
    whole = encode(picture)
    for data in (b"", b"text", b"\xff\xd8\xff", whole[:300], whole[:-2], encode(picture, "PNG")[:200]):
        expected = verdict(data)
        assert isinstance(expected, str)
        with pytest.raises(InputError) as raised:
            read_pixels(data, "x")
        assert str(raised.value) == expected


def test_too_large_is_refused_from_the_header(decoded: list[int]) -> None:
    data = bytearray(encode(photograph()))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", 65000, MAX_PIXELS // 65000 + 1)
    with pytest.raises(InputError, match=r"^x is larger than 178 megapixels"):
        read_pixels(bytes(data), "x")
    assert not decoded


def test_no_cut_gives_half_a_picture() -> None:
    for options in ({}, {"progressive": True}, {"restart_marker_rows": 1}):
        data = encode(photograph(), **options)
        for length in range(1, len(data), 5):
            for end in (b"", b"\xff\xd9"):
                _check_verdict(data[:length] + end)


def test_damaged_files_get_pillows_verdict() -> None:
    """700 of them: bytes changed, cut out and put in, ends cut off with and without a new end."""
    rng = np.random.default_rng(0)
    files = [
        encode(photograph(seed=seed), exif=turned(1), **options)
        for seed, options in enumerate(
            ({}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_rows": 1}, {"quality": 95})
        )
    ]
    files.append(encode(photograph().convert("L")))
    verdicts = Counter(_check_verdict(_damaged(files[n % len(files)], rng)) for n in range(700))
    assert min(verdicts["read"], verdicts["refused"]) > 100


def _damaged(data: bytes, rng: np.random.Generator) -> bytes:
    at, other = sorted(rng.integers(2, len(data), size=2).tolist())
    way = rng.integers(5)
    if way == 0:
        return data[:at] + (b"\xff\xd9" if rng.random() < 0.7 else b"")
    if way == 1:
        return data[:at] + data[min(other, at + 40) :]
    if way == 2:
        return data[:at] + rng.integers(0, 256, 20, dtype=np.uint8).tobytes() + data[at:]
    changed = bytearray(data)
    for place in rng.integers(2, len(data), size=3):
        changed[place] = 255 if way == 3 else rng.integers(256)
    return bytes(changed)


def _check_verdict(data: bytes) -> str:
    expected = verdict(data)
    if isinstance(expected, Tensor):
        assert same(data)
        return "read"
    with pytest.raises(InputError) as raised:
        read_pixels(data, "x")
    assert str(raised.value) == expected
    return "refused"


def test_a_cut_file_prints_nothing(tmp_path: Path) -> None:
    whole = encode(photograph(64, 64))
    files = [whole[: len(whole) // 2], whole[: len(whole) // 2] + b"\xff\xd9" + whole[-20:], whole + b"\0\0"]
    for number, data in enumerate(files):
        (tmp_path / f"{number}.jpg").write_bytes(data)
    code = (
        "import sys; from pathlib import Path; from diffclip.data.pixels import read_pixels\n"
        "for path in sys.argv[1:]:\n"
        "    try: read_pixels(Path(path).read_bytes())\n"
        "    except Exception as error: print(type(error).__name__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.split(), done.stderr) == (["InputError"], "")


def test_without_torchvisions_decoder_pillow_reads_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torchvision.io, "decode_jpeg")
    assert same(encode(photograph()))

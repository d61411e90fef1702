import io
import os
import struct
import time
import zlib

import pytest
from PIL import Image

from diffclip.errors import InputError
from diffclip.web.decoding import decode
from diffclip.web.uploads import (
    MAX_BYTES,
    MAX_LETTERS,
    MAX_TEXTS,
    lies_within,
    parse_texts,
    read_upload,
    sweep,
)


def encode(picture, kind="PNG", **options):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def test_an_upload_is_read_as_rgb(tmp_path):
    for name, mode in (("a.jpg", "CMYK"), ("b.png", "P"), ("c.png", "I;16"), ("d.gif", "L")):
        Image.new(mode, (30, 20)).save(tmp_path / name)
        picture = read_upload(str(tmp_path / name), tmp_path, decode)
        assert (picture.mode, picture.size) == ("RGB", (30, 20))


def test_an_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert read_upload(str(tmp_path / "a.gif"), tmp_path, decode).getpixel((3, 3)) == (255, 0, 0)


def test_what_is_no_upload(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out.png"
    inside.mkdir()
    Image.new("RGB", (4, 4)).save(outside)
    (inside / "link.png").symlink_to(outside)
    for path in (outside, inside / ".." / "out.png", inside / "link.png", inside, "/etc/passwd", "a\0b"):
        with pytest.raises(InputError, match=r"not uploaded here|no longer here"):
            read_upload(str(path), inside, decode)
    with pytest.raises(InputError, match="no picture yet"):
        read_upload(None, inside, decode)
    with pytest.raises(InputError, match=r"^gone\.png is no longer here"):
        read_upload(str(inside / "gone.png"), inside, decode)


def test_a_file_above_the_limit_is_not_decoded(tmp_path):
    (tmp_path / "big.png").write_bytes(encode(Image.new("RGB", (4, 4))) + b"\0" * MAX_BYTES)
    with pytest.raises(InputError, match=r"^big\.png is larger than 20 MB"):
        read_upload(str(tmp_path / "big.png"), tmp_path, decode)


def bombs():
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    def png(width, height):
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
        rows = zlib.compress(b"\0" * 10**6)
        return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", rows) + chunk(b"IEND", b"")

    inner = png(30_000, 30_000)
    yield "wide.png", png(2**31 - 1, 1)
    yield "square.png", png(60_000, 60_000)
    yield "icon.ico", struct.pack("<HHHBBBBHHII", 0, 1, 1, 0, 0, 0, 0, 1, 32, len(inner), 22) + inner
    yield "frame.gif", b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b"\0" * 60
    yield "dib.bmp", b"BM" + struct.pack("<IHHIIiiHHIIIIII", 0, 0, 0, 54, 40, 40000, 40000, 1, 24, *[0] * 6)
    yield "just.png", encode(Image.new("1", (5001, 5000)))


@pytest.mark.parametrize(("name", "content"), list(bombs()))
def test_a_bomb_is_refused_from_its_header(name, content, tmp_path, monkeypatch):
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("it was decoded"))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"^{name} (is larger than 25 megapixels|is not an image)"):
        read_upload(str(tmp_path / name), tmp_path, decode)


def test_a_picture_at_the_limit_is_read(tmp_path):
    (tmp_path / "large.png").write_bytes(encode(Image.new("1", (5000, 5000))))
    assert read_upload(str(tmp_path / "large.png"), tmp_path, decode).size == (5000, 5000)


def test_texts_are_lines_without_blanks_and_repetitions():
    assert parse_texts("  a  dog \n\n a cat\r\na dog\n\t\n") == ["a dog", "a cat"]
    assert parse_texts("<b>\n'\"&") == ["<b>", "'\"&"]


def test_texts_that_cannot_be_written_are_replaced():
    (text,) = parse_texts("half a \ud83d pair")
    assert text.encode().decode() == "half a ? pair"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("", "no text yet"),
        (" \n\t\n", "no text yet"),
        ("\n".join(map(str, range(MAX_TEXTS + 1))), "33 texts are too many: up to 32"),
        ("x" * (MAX_LETTERS + 1), "301 letters is too long"),
    ],
)
def test_texts_beyond_the_limits(lines, told):
    with pytest.raises(InputError, match=told):
        parse_texts(lines)
    assert len(parse_texts("\n".join(f"{n:0300}" for n in range(MAX_TEXTS)))) == MAX_TEXTS


def test_places_within(tmp_path):
    assert lies_within(str(tmp_path / "a" / "b"), tmp_path)
    assert not lies_within(str(tmp_path) + "-other/a", tmp_path)
    assert not lies_within("http://example.invalid/a.png", tmp_path)
    assert not lies_within("a.png", tmp_path)


def test_old_files_and_the_oldest_of_too_many_are_removed(tmp_path):
    now = time.time()
    for age in (10, 20, 30, 5000):
        file = tmp_path / str(age) / "x"
        file.parent.mkdir()
        file.write_bytes(b"12345")
        os.utime(file, (now - age, now - age))
    sweep(tmp_path, seconds=3600, size=100)
    assert {file.parent.name for file in tmp_path.rglob("x")} == {"10", "20", "30"}
    sweep(tmp_path, seconds=3600, size=11)
    assert {file.parent.name for file in tmp_path.rglob("x")} == {"10", "20"}


def test_too_many_files_and_their_folders_are_removed(tmp_path):
    now = time.time()
    for age in range(6):
        file = tmp_path / str(age) / "x"
        file.parent.mkdir()
        file.touch()
        os.utime(file, (now - age, now - age))
    sweep(tmp_path, count=2)
    assert {folder.name for folder in tmp_path.iterdir()} == {"0", "1"}

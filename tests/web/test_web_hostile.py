"""Malformed uploads, many clients, and what must never be read, over real HTTP."""

from __future__ import annotations

import http.client
import io
import random
import re
import signal
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from web_bombs import endless_jpeg
from web_page_process import start, wait_for_address

pytestmark = pytest.mark.slow

UPLOADS, CLIENTS = 210, 20


def encode(picture: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, rows: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def bombs() -> list[tuple[str, bytes]]:
    inner = png(20_000, 20_000, b"\0" * 4_000_000)
    icon = struct.pack("<HHHBBBBHHII", 0, 1, 1, 0, 0, 0, 0, 1, 32, len(inner), 22) + inner
    text = chunk(b"zTXt", b"a\0\0" + zlib.compress(b"x" * 30_000_000))
    return [
        ("bomb.png", inner),
        ("line.png", png(2**31 - 1, 1, b"")),
        ("icon.ico", icon),
        ("text.png", inner[:33] + text + inner[33:]),
        ("frame.gif", b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b"\0" * 60),
        ("dib.bmp", b"BM" + struct.pack("<IHHIIiiHHIIIIII", 0, 0, 0, 54, 40, 40000, 40000, 1, 24, *[0] * 6)),
        ("flat.tiff", encode(Image.new("1", (5500, 5500)), "TIFF", compression="group4")),
        ("endless.jpg", endless_jpeg()),
        ("flat.webp", encode(Image.new("RGB", (9000, 3000)), "WEBP")),
    ]


def wrong_kinds() -> list[tuple[str, bytes]]:
    return [
        ("a.svg", b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>"),
        ("a.html", b"<script>alert(1)</script>"),
        ("a.png", b"\x7fELF" + bytes(300)),
        ("a.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n"),
        ("a.jpg", b"PK\x03\x04" + bytes(200)),
        ("a.pdf", b"%PDF-1.7\n"),
        ("a.mp4", b"\0\0\0\x18ftypmp42" + bytes(500)),
        ("empty.png", b""),
        ("zeros.png", bytes(10_000)),
        ("../../../up.png", b"\x89PNG\r\n\x1a\n"),
        ("x" * 400 + ".png", b"RIFF\0\0\0\0WEBPVP8 "),
        ("\u202egnp.exe", b"MZ" + bytes(100)),
        ("a;b&c|d$(e).gif", b"GIF89a"),
        ("no_name", b"\xff\xd8\xff\xe0"),
    ]


def malformed(seed: int) -> Iterator[tuple[str, bytes]]:
    """Bombs and files of other kinds, then cut and damaged pictures of all kinds, UPLOADS in all."""
    dice = random.Random(seed)
    values = np.random.default_rng(seed).integers(0, 256, (70, 90, 4), dtype=np.uint8)
    picture = Image.fromarray(values[..., :3])
    whole = {
        "jpg": encode(picture, "JPEG", progressive=True),
        "png": encode(Image.fromarray(values), "PNG"),
        "gif": encode(picture.quantize(), "GIF", save_all=True, append_images=[picture.quantize()] * 3),
        "webp": encode(picture, "WEBP"),
        "tiff": encode(picture.convert("CMYK"), "TIFF", compression="tiff_lzw"),
        "bmp": encode(picture, "BMP"),
        "ico": encode(picture, "ICO"),
        "jp2": encode(picture, "JPEG2000"),
        "ppm": encode(picture, "PPM"),
    }
    fixed = bombs() + wrong_kinds()
    yield from fixed
    for number in range(UPLOADS - len(fixed)):
        kind = dice.choice(sorted(whole))
        content = bytearray(whole[kind])
        if number % 2:
            del content[dice.randrange(1, len(content)) :]
        else:
            for _ in range(dice.choice((1, 4, 30))):
                # headers more often than pixels
                place = dice.randrange(len(content)) if dice.random() < 0.5 else dice.randrange(50)
                content[place] ^= 1 << dice.randrange(8)
        yield f"{number}.{kind}", bytes(content)


def test_malformed_uploads_are_all_answered(page):
    good = encode(Image.new("RGB", (40, 30), "red"), "PNG")
    before = page.look(page.upload(good))
    assert 'class="dc-results"' in before[1]
    start_memory, said = page.memory("VmRSS"), len(page.log())

    def visit(given: tuple[str, bytes]) -> bool:
        name, content = given
        path = page.upload(content, name)
        assert path is not None, name
        told, shown, *_ = page.look(path)
        is_shown = 'class="dc-results"' in str(shown)
        assert is_shown or 'class="dc-message dc-bad"' in str(told), (name, told, shown)
        assert ("took too long to read" in told) == (name == "endless.jpg")
        return is_shown

    with ThreadPoolExecutor(4) as pool:
        shown = list(pool.map(visit, malformed(seed=0)))
    assert len(shown) == UPLOADS
    assert 10 < sum(shown) < UPLOADS - 100
    assert page.look(page.upload(good))[1] == before[1]
    assert page.memory("VmHWM") - start_memory < 700 * 2**20
    # libtiff has its own word on stderr, nobody else has
    assert not re.search(r"Traceback|diffclip:|Warning", page.log()[said:])


def test_a_hostile_picture_to_search_with(page):
    for name, content in wrong_kinds() + bombs()[:3]:
        assert 'class="dc-message dc-bad"' in page.search("", page.upload(content, name))[0]


def test_twenty_clients_at_once_lose_nothing(page):
    pictures = [
        encode(Image.new("RGB", (300 + number, 200), (10 * number, 99, 9)), "JPEG")
        for number in range(CLIENTS)
    ]

    def visit(number: int) -> list[str]:
        texts = f"client {number}\nanother"
        bad = page.look(page.upload(b"GIF89a", f"{number}.gif"), texts)
        shown = [page.look(page.upload(pictures[number], f"{number}.jpg"), texts)[1] for _ in range(3)]
        assert 'class="dc-message dc-bad"' in bad[0]
        return shown

    with ThreadPoolExecutor(CLIENTS) as pool:
        results = list(pool.map(visit, range(CLIENTS)))
    for number, shown in enumerate(results):
        assert len(shown) == 3
        assert all(f"client {number}<" in html for html in shown)
        assert len(set(shown)) == 1


def test_more_than_can_wait_are_told_so(page):
    # who takes the longest is asked for first, so that the others come while it is read
    slow = page.upload(encode(Image.effect_noise((3000, 3000), 90), "PNG"))
    small = page.upload(encode(Image.new("RGB", (40, 40)), "PNG"))
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda number: page.look(slow if number < 4 else small), range(50)))
    refused = [answer for answer in answers if answer[0] == 503]
    served = [answer for answer in answers if 'class="dc-results"' in str(answer[1])]
    assert len(refused) + len(served) == 50
    assert refused
    assert len(served) >= 32
    assert all("Queue is full" in answer[1] for answer in refused)
    assert 'class="dc-results"' in page.look(small)[1]


def test_nothing_but_uploads_can_be_read(page, photos):
    own = Path(page.upload(b"my own", "own.txt"))
    assert page.http.get(f"/gradio_api/file={own}").content == b"my own"
    host = urlsplit(page.url)
    for name in (
        "/etc/passwd",
        "/proc/self/environ",
        "pyproject.toml",
        str(photos / "red.png"),
        str(photos.parent / "neighbour.png"),
        f"{own.parent}/../../../etc/passwd",
        f"{own.parent}/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "http://127.0.0.1:1/x",
        "file:///etc/passwd",
        str(own.parent),
        str(own.parent.parent),
    ):
        for route in ("/gradio_api/file=", "/gradio_api/file/", "/gradio_api/proxy=", "/static/", "/assets/"):
            connection = http.client.HTTPConnection(host.hostname, host.port, timeout=20)
            connection.request("GET", f"{route}{name}")
            status = connection.getresponse().status
            connection.close()
            assert status in (403, 404), f"{route}{name}"


def test_a_request_cannot_name_a_file_or_an_address(page, photos):
    for path in (
        "/etc/passwd",
        str(photos / "red.png"),
        "http://127.0.0.1:1/x.png",
        "../x",
        "pyproject.toml",
    ):
        assert page.look(path)[0] == 403
        assert (
            page.ask("dc-look", [None, None, {"path": path, "meta": {"_type": "gradio.FileData"}}, "", 0])[0]
            == 403
        )
    for values in ([], [None] * 40, ["x", "y", 3, [], {}], [None, 99, "a", "relevance", 60]):
        page.ask("dc-look", values)
    assert 'class="dc-results"' in page.look(None, scene=0)[1]


def test_too_large_an_upload_is_refused(page):
    assert page.upload(bytes(20 * 2**20 + 1)) is None
    assert page.upload(bytes(25 * 2**20)) is None
    many = [("files", (f"{number}", bytes(2**20))) for number in range(30)]
    assert page.http.post("/gradio_api/upload", files=many).status_code == 413


def test_a_terminal_that_is_closed_leaves_nothing(model_folders, tmp_path):
    process = start("--model", model_folders[0], cache=tmp_path)
    wait_for_address(process, tmp_path / "log")
    assert list(tmp_path.glob("diffclip-explore-*"))
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=60) == 130
    assert (tmp_path / "log").read_text().splitlines()[1:] == ["diffclip: interrupted"]
    assert not list(tmp_path.glob("diffclip-explore-*"))

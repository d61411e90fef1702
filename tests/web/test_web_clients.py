"""The page as a real process, with hostile clients and many clients at once."""

import http.client
import signal
import struct
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from made_sets import encoded, png_by_hand
from PIL import Image
from web_page_process import start, wait_for_address

pytestmark = pytest.mark.slow

# decompression bombs, a file of another kind, no file and a name that is too long
BAD_FILES = [
    ("bomb.png", png_by_hand(20_000, 20_000, b"\0" * 4_000_000)),
    ("frame.gif", b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b"\0" * 60),
    ("a.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n"),
    ("empty.png", b""),
    ("x" * 400 + ".png", b"RIFF\0\0\0\0WEBPVP8 "),
]


def test_bad_uploads_all_get_an_answer_and_the_page_keeps_working(page, capfd):
    good = encoded(Image.new("RGB", (40, 30), "red"), "PNG")
    before = page.look(page.upload(good))
    assert 'class="dc-results"' in before[1]
    for name, content in BAD_FILES:
        message, results, *_ = page.look(page.upload(content, name))
        assert 'class="dc-message dc-bad"' in str(message), (name, message, results)
    assert page.look(page.upload(good))[1] == before[1]
    assert "Traceback" not in capfd.readouterr().err
    assert page.upload(bytes(20 * 2**20 + 1)) is None


def test_many_clients_each_get_their_own_answer_or_a_full_queue_error(page):
    slow = page.upload(encoded(Image.effect_noise((3000, 3000), 90), "PNG"))
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda number: page.look(slow, f"client {number}\nanother"), range(50)))
    refused = [answer for answer in answers if answer[0] == 503]
    assert refused
    assert all("Queue is full" in answer[1] for answer in refused)
    served = [(number, answer) for number, answer in enumerate(answers) if answer[0] != 503]
    assert len(served) >= 20
    assert all(f"client {number}<" in answer[1] for number, answer in served)


def test_clients_can_read_only_uploaded_files(page, tmp_path):
    host, image = urlsplit(page.url), tmp_path / "red.png"
    image.write_bytes(encoded(Image.new("RGB", (60, 48), "red"), "PNG"))
    for path in ("/etc/passwd", "pyproject.toml", str(image), "http://127.0.0.1:1/x"):
        for route in ("/gradio_api/file=", "/gradio_api/proxy=", "/static/", "/assets/"):
            connection = http.client.HTTPConnection(host.hostname, host.port, timeout=60)
            connection.request("GET", f"{route}{path}")
            status = connection.getresponse().status
            connection.close()
            assert status in (400, 403, 404), f"{route}{path}"
        assert 'class="dc-results"' not in str(page.look(path))
    assert 'class="dc-results"' in page.look(None, scene=0)[1]


def test_a_password_is_required_and_a_hangup_ends_the_page_cleanly(model_folders, tmp_path):
    import httpx

    process = start("--model", model_folders[0], "--auth", "ada:secret", cache=tmp_path)
    url = wait_for_address(process, tmp_path / "log")
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        assert client.get("/config").status_code == 401
        assert client.post("/login", data={"username": "ada", "password": "wrong"}).status_code == 400
        assert client.post("/login", data={"username": "ada", "password": "secret"}).status_code == 200
        assert client.get("/config").status_code == 200
    assert list(tmp_path.glob("diffclip-explore-*"))
    # under nohup, which may run these tests, the page survives a closed terminal
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    process.send_signal(signal.SIGTERM if is_ignored else signal.SIGHUP)
    assert process.wait(timeout=120) == 130
    assert (tmp_path / "log").read_text().splitlines()[1:] == ["diffclip: interrupted"]
    assert not list(tmp_path.glob("diffclip-explore-*"))

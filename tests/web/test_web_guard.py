import asyncio
import json

import pytest

from diffclip.web.guard import Guard
from diffclip.web.uploads import MAX_BYTES

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class Inner:
    """An application that reads the body and answers with it."""

    def __init__(self):
        self.bodies = []

    async def __call__(self, scope, receive, send):
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the client left")
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"inner"})


def call(folder, method, path, body=b"", headers=None, hosts=LOCAL, parts=1):
    """The status, the headers and the text that a request gets, and what the application behind got."""
    inner, sent = Inner(), []
    headers = {"host": "127.0.0.1:7860", **(headers or {})}
    size = max(1, -(-len(body) // parts))
    pieces = [body[start : start + size] for start in range(0, len(body), size)] or [b""]
    waiting = [
        {"type": "http.request", "body": piece, "more_body": n < len(pieces) - 1}
        for n, piece in enumerate(pieces)
    ]

    async def receive():
        return waiting.pop(0)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(Guard(inner, folder, hosts)(scope, receive, send))
    answer = dict(sent[0]["headers"])
    return sent[0]["status"], answer, b"".join(m.get("body", b"") for m in sent[1:]).decode(), inner.bodies


def joined(*values):
    return json.dumps({"data": values, "fn_index": 0, "session_hash": "x"}).encode()


@pytest.mark.parametrize(
    "path", ["/", "/config", "/theme.css", "/assets/index.js", "/gradio_api/queue/data", "/static/js/x.js"]
)
def test_what_the_page_needs_comes_through(tmp_path, path):
    status, headers, text, _ = call(tmp_path, "GET", path)
    assert (status, text) == (200, "inner")
    assert "default-src 'self'" in headers[b"content-security-policy"].decode()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/gradio_api/proxy=http://example.invalid/"),
        ("GET", "/gradio_api/info"),
        ("GET", "/gradio_api/openapi.json"),
        ("GET", "/monitoring"),
        ("GET", "/docs"),
        ("GET", "/gradio_api/file/etc/passwd"),
        ("GET", "/assets/../../etc/passwd"),
        ("GET", "/gradio_api/deep_link"),
        ("POST", "/gradio_api/run/predict"),
        ("POST", "/gradio_api/api/predict"),
        ("POST", "/gradio_api/call/look"),
        ("POST", "/gradio_api/process_recording"),
        ("POST", "/gradio_api/vibe-edit"),
        ("POST", "/gradio_api/cancel"),
        ("PUT", "/gradio_api/upload"),
        ("POST", "/"),
    ],
)
def test_nothing_else_does(tmp_path, method, path):
    status, _, _, behind = call(tmp_path, method, path)
    assert status == 404
    assert not behind


def test_only_uploads_are_served(tmp_path):
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    (tmp_path / "neighbour").write_text("x")
    (uploads / "link").symlink_to(tmp_path / "neighbour")
    for name in ("/etc/passwd", str(tmp_path / "neighbour"), str(uploads / "link"), "pyproject.toml", "C:/x"):
        assert call(uploads, "GET", f"/gradio_api/file={name}")[0] == 403
    assert call(uploads, "GET", f"/gradio_api/file={uploads}/../neighbour")[0] == 404
    assert call(uploads, "GET", f"/gradio_api/file={uploads}/a/b.png")[0] == 200


def test_files_in_a_request_must_be_uploads(tmp_path):
    path = "/gradio_api/queue/join"
    good = joined({"path": str(tmp_path / "a.png"), "url": None}, "text", 3)
    assert call(tmp_path, "POST", path, good, parts=3)[3] == [good]
    for bad in ("/etc/passwd", "http://example.invalid/x.png", str(tmp_path / ".." / "x"), "", 7):
        for value in ({"path": bad}, [{"deep": {"path": bad, "meta": {"_type": "gradio.FileData"}}}]):
            status, _, _, behind = call(tmp_path, "POST", path, joined(value))
            assert status == 403
            assert not behind
    assert call(tmp_path, "POST", path, b"{not JSON")[0] == 400
    assert call(tmp_path, "POST", path, b"[" * 100_000)[0] == 400


def test_bodies_have_limits_whatever_their_header_says(tmp_path):
    large = b"x" * (MAX_BYTES + 10**6)
    assert call(tmp_path, "POST", "/gradio_api/upload", b"x" * 1000)[0] == 200
    status, _, text, behind = call(tmp_path, "POST", "/gradio_api/upload", large, parts=40)
    assert (status, behind) == (413, [])
    status, _, text, behind = call(
        tmp_path, "POST", "/gradio_api/upload", large, {"content-length": str(len(large))}
    )
    assert (status, behind) == (413, [])
    assert "20 MB" in text
    assert call(tmp_path, "POST", "/gradio_api/queue/join", b" " * 300_000, parts=7)[0] == 413
    assert call(tmp_path, "POST", "/gradio_api/upload", b"", {"content-length": "many"})[0] == 413


def test_other_names_and_other_sites_are_kept_out(tmp_path):
    for host in ("localhost:7860", "[::1]:7860", "127.0.0.1"):
        assert call(tmp_path, "GET", "/", headers={"host": host})[0] == 200
    for host in ("evil.example", "evil.example:7860", "", "127.0.0.1.evil.example"):
        assert call(tmp_path, "GET", "/", headers={"host": host})[0] == 403
        if host:
            assert call(tmp_path, "GET", "/", headers={"host": host}, hosts=None)[0] == 200
    own, other = {"origin": "http://127.0.0.1:7860"}, {"origin": "http://evil.example"}
    assert call(tmp_path, "POST", "/gradio_api/upload", b"x", own)[0] == 200
    for headers in (other, {"origin": "null"}, {"origin": "http://127.0.0.1:9999"}):
        assert call(tmp_path, "POST", "/gradio_api/upload", b"x", headers)[0] == 403


def test_sockets_are_refused(tmp_path):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "websocket.connect"}

    asyncio.run(Guard(Inner(), tmp_path, None)({"type": "websocket", "path": "/"}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]

import asyncio
import json

import pytest

from diffclip.web import guard
from diffclip.web.guard import Guard
from diffclip.web.sessions import Sessions
from diffclip.web.uploads import MAX_BYTES

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class Queue:
    """The parts of gradio's queue that keep results."""

    def __init__(self):
        self.pending_messages_per_session, self.pending_event_ids_session = {}, {}
        self.event_ids_to_events, self.cleaned = {}, []

    async def clean_events(self, session_hash):
        self.cleaned.append(session_hash)

    def push(self, session, number=1):
        self.pending_messages_per_session[session] = ["a result"]
        self.pending_event_ids_session[session] = {f"{session}{n}" for n in range(number)}
        self.event_ids_to_events |= {f"{session}{n}": "an event" for n in range(number)}


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


def call(folder, method, path, body=b"", headers=None, hosts=LOCAL, parts=1, whole=True):
    """The status, the headers and the text that a request gets, and what the application behind got."""
    inner, sent = Inner(), []
    headers = {"host": "127.0.0.1:7860", **(headers or {})}
    size = max(1, -(-len(body) // parts))
    pieces = [body[start : start + size] for start in range(0, len(body), size)] or [b""]
    waiting = [
        {"type": "http.request", "body": piece, "more_body": not whole or n < len(pieces) - 1}
        for n, piece in enumerate(pieces)
    ]

    async def receive():
        if not waiting:
            await asyncio.sleep(60)
        return waiting.pop(0)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(Guard(inner, folder, Sessions(Queue()), hosts)(scope, receive, send))
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

    asyncio.run(
        Guard(Inner(), tmp_path, Sessions(Queue()), None)({"type": "websocket", "path": "/"}, receive, send)
    )
    assert sent == [{"type": "websocket.close", "code": 1008}]


@pytest.mark.parametrize("path", ["/gradio_api/upload", "/gradio_api/queue/join"])
def test_a_body_that_does_not_come_is_given_up(tmp_path, monkeypatch, path):
    monkeypatch.setattr(guard, "_PAUSE", 0.05)
    status, _, _, behind = call(tmp_path, "POST", path, b"{", whole=False)
    assert status in (400, 408)
    assert not behind


def test_a_join_must_name_its_session(tmp_path):
    for session in (None, 7, "", "x" * 65, "a b"):
        body = json.dumps({"data": [], "session_hash": session}).encode()
        assert call(tmp_path, "POST", "/gradio_api/queue/join", body)[0] == 400
    assert call(tmp_path, "POST", "/gradio_api/queue/join", b"[]")[0] == 400


def test_what_nobody_collects_is_forgotten():
    async def visit():
        queue = Queue()
        sessions = Sessions(queue, seconds=0.1)
        for session in ("silent", "listening"):
            assert sessions.join(session) is None
            queue.push(session)
        with sessions.stream("listening"):
            await asyncio.sleep(0.2)
            assert set(queue.pending_messages_per_session) == {"listening"}
            assert set(queue.event_ids_to_events) == {"listening0"}
            assert queue.cleaned == ["silent"]
        await asyncio.sleep(0.2)
        assert not queue.pending_messages_per_session
        assert not queue.pending_event_ids_session

    asyncio.run(visit())


def test_a_session_cannot_leave_much_uncollected(monkeypatch):
    monkeypatch.setattr("diffclip.web.sessions._SESSIONS", 2)

    async def visit():
        queue = Queue()
        sessions = Sessions(queue)
        queue.push("a", 7)
        assert sessions.join("a") is None
        queue.push("a", 8)
        assert sessions.join("a")[0] == 429
        assert sessions.join("b") is None
        assert sessions.join("c")[0] == 503

    asyncio.run(visit())

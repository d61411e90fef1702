"""What stands before the page: only what it needs is answered, and nothing larger than it may be.

gradio's server can do more than this page asks of it: it forwards addresses, takes recordings, runs functions past its
queue. Only the routes that the page itself uses come through, and names of files in a request must be of uploads.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from diffclip.web.sessions import Sessions
from diffclip.web.uploads import MAX_BYTES, lies_within, sweep

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_FILE, _UPLOAD, _JOIN = "/gradio_api/file=", "/gradio_api/upload", "/gradio_api/queue/join"
_STREAM = "/gradio_api/queue/data"
_GET = re.compile(
    r"/|/config|/theme\.css|/manifest\.json|/favicon\.ico|/robots\.txt|/pwa_icon|/(assets|static)/.*"
    r"|/gradio_api/(app_id|upload_progress|heartbeat/[\w-]+|queue/data|file=.*)"
)
# a file with the boundaries of its form around it; texts of all inputs, in escaped letters
_BODIES = {_UPLOAD: MAX_BYTES + 64 * 2**10, _JOIN: 256 * 2**10}

_PAUSE, _BODY_SECONDS = 30.0, 300.0
"""What a body may take: between two of its parts, and as a whole."""
_SWEEP_SECONDS = 3.0

_HEADERS = {
    # whatever the page's libraries would like to load from elsewhere, the browser does not
    "content-security-policy": "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class Guard:
    """An ASGI application around `app`.

    Args:
        app: what answers.
        uploads: the folder of the uploaded files; swept before an upload.
        sessions: of the queue.
        hosts: the names by which this server may be called, None for any. With a page on this machine alone it keeps
            out other sites that have their own name point here.
    """

    def __init__(self, app: App, uploads: Path, sessions: Sessions, hosts: frozenset[str] | None) -> None:
        self._app, self._uploads, self._sessions, self._hosts = app, uploads, sessions, hosts
        self._swept = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        send = _with_headers(send)
        refusal = self._refusal(scope)
        if refusal:
            return await _answer(send, *refusal)
        path = scope["path"]
        if scope["method"] == "POST":
            receive = _in_time(receive)
        if path == _STREAM:
            query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
            with self._sessions.stream(query.get("session_hash", [""])[-1]):
                return await self._app(scope, receive, send)
        if path == _JOIN:
            return await self._join(scope, receive, send)
        if path == _UPLOAD and time.monotonic() - self._swept > _SWEEP_SECONDS:
            self._swept = time.monotonic()
            await asyncio.to_thread(sweep, self._uploads)
        bounded = _Bounded(receive, send, _BODIES.get(path, 0))
        await bounded.run(self._app, scope)

    async def _join(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _whole(receive, _BODIES[_JOIN])
        if body is None:
            return await _answer(send, 413, "this request is too large")
        try:
            asked = json.loads(body)
            names = list(_paths(asked))
        except (ValueError, RecursionError):
            return await _answer(send, 400, "this request is not JSON")
        if not all(lies_within(name, self._uploads) for name in names):
            return await _answer(send, 403, "this file was not uploaded here")
        refusal = self._sessions.join(asked.get("session_hash") if isinstance(asked, dict) else None)
        if refusal:
            return await _answer(send, *refusal)
        await self._app(scope, _replay(body, receive), send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host, path = headers.get("host", ""), scope["path"]
        if self._hosts is not None and _name(host) not in self._hosts:
            return 403, "this page is for this machine alone: open it by the address that the terminal shows"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return 403, "another site may not use this page"
        if scope["method"] == "POST":
            if path not in _BODIES:
                return 404, "not found"
            length = headers.get("content-length", "0")
            if not length.isdecimal() or int(length) > _BODIES[path]:
                return 413, f"this file is larger than {MAX_BYTES // 2**20} MB: scale it down first"
            return None
        if scope["method"] not in ("GET", "HEAD") or not _GET.fullmatch(path) or ".." in path.split("/"):
            return 404, "not found"
        if path.startswith(_FILE) and not lies_within(path.removeprefix(_FILE), self._uploads):
            return 403, "not allowed"
        return None


class _Bounded:
    """One request that ends when its body exceeds `limit` bytes, whatever its header promised, or stays away."""

    def __init__(self, receive: Receive, send: Send, limit: int) -> None:
        self._receive, self._send, self._left = receive, send, limit
        self._whole = self._begun = False
        self._refusal: tuple[int, str] | None = None

    async def run(self, app: App, scope: Scope) -> None:
        try:
            await app(scope, self._take, self._give)
        except Exception:
            if not self._refusal:
                raise
        if self._refusal and not self._begun:
            await _answer(self._send, *self._refusal)

    async def _take(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            self._refusal = 413, "this request is too large"
            return {"type": "http.disconnect"}
        if message["type"] == "http.disconnect" and not self._whole:
            self._refusal = 408, "this request took too long"
        self._whole = self._whole or not message.get("more_body")
        return message

    async def _give(self, message: Message) -> None:
        if not self._refusal or self._begun:
            self._begun = True
            await self._send(message)


def _in_time(receive: Receive) -> Receive:
    """`receive`, as if the visitor had left when a body takes too long."""
    end, over = time.monotonic() + _BODY_SECONDS, False

    async def receiving() -> Message:
        nonlocal over
        if over:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), min(_PAUSE, max(0.0, end - time.monotonic())))
        except TimeoutError:
            return {"type": "http.disconnect"}
        over = not message.get("more_body")
        return message

    return receiving


def _name(host: str) -> str:
    """The name in a Host header, without the port."""
    host = host.lower()
    return host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]


async def _whole(receive: Receive, limit: int) -> bytes | None:
    """The body of a request, None if it is longer than `limit`."""
    parts: list[bytes] = []
    while sum(map(len, parts)) <= limit:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    body = b"".join(parts)
    return body if len(body) <= limit else None


def _replay(body: bytes, receive: Receive) -> Receive:
    """What gives `body` once, and then what `receive` gives."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _paths(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if value.get("path") is not None:
            yield str(value["path"])
        for inner in value.values():
            yield from _paths(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            extra = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            message["headers"] = [*message.get("headers", []), *extra]
        await send(message)

    return sending


async def _answer(send: Send, status: int, text: str) -> None:
    body = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

"""What visitors have asked for and not collected: gradio's queue keeps every result until somebody does.

A session is a page in a browser: it joins the queue, and collects results through one stream.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_UNCOLLECTED = 8
"""Of one session; a page that waits for a result asks also for news and pictures."""
_SESSIONS = 1000
_SECONDS = 30.0


class Sessions:
    """The sessions of gradio's `queue` (a `gradio.queueing.Queue`), which are forgotten when nobody listens."""

    def __init__(self, queue: Any, seconds: float = _SECONDS) -> None:
        self._queue, self._seconds = queue, seconds
        self._seen: dict[str, float] = {}
        self._streams: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    def join(self, session: Any) -> tuple[int, str] | None:
        """Note that a session joins the queue; why it may not, as status and text."""
        if not (isinstance(session, str) and re.fullmatch(r"[\w-]{1,64}", session, re.ASCII)):
            return 400, "this request names no session"
        if len(self._queue.pending_event_ids_session.get(session, ())) >= _UNCOLLECTED:
            return 429, "too much at once: wait for what you have asked for"
        if session not in self._seen and len(self._seen) >= _SESSIONS:
            return 503, "too many visitors: come back later"
        self._seen[session] = time.monotonic()
        self._later(session)
        return None

    @contextmanager
    def stream(self, session: str) -> Iterator[None]:
        """While `session` listens."""
        self._streams[session] += 1
        try:
            yield
        finally:
            self._streams[session] -= 1
            if not self._streams[session]:
                del self._streams[session]
            if session in self._seen:
                self._seen[session] = time.monotonic()
                self._later(session)

    def _later(self, session: str) -> None:
        task = asyncio.get_running_loop().create_task(self._forget(session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forget(self, session: str) -> None:
        await asyncio.sleep(self._seconds)
        queue = self._queue
        if self._silent(session):
            await queue.clean_events(session_hash=session)
        # it may have come back meanwhile
        if self._silent(session):
            del self._seen[session]
            queue.pending_messages_per_session.pop(session, None)
            for event in queue.pending_event_ids_session.pop(session, ()):
                queue.event_ids_to_events.pop(event, None)

    def _silent(self, session: str) -> bool:
        since = self._seen.get(session)
        return (
            since is not None
            and session not in self._streams
            and time.monotonic() - since >= 0.9 * self._seconds
        )

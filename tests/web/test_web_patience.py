import socket
import threading
import time

import pytest

uvicorn = pytest.importorskip("uvicorn")

from diffclip.web import patience  # noqa: E402


async def answer(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def address(monkeypatch):
    monkeypatch.setattr(patience, "HEAD_SECONDS", 0.3)
    config = uvicorn.Config(answer, http=patience.ImpatientProtocol, lifespan="off", log_level="critical")
    server = uvicorn.Server(config)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield bound.getsockname()
        server.should_exit = True
        thread.join(timeout=20)


WHOLE = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


def test_who_says_nothing_is_sent_away_and_who_asks_is_not(address):
    for said in (b"", WHOLE[:7], WHOLE[:-2]):
        with socket.create_connection(address, timeout=20) as one:
            one.sendall(said)
            assert one.recv(100) == b""
    with socket.create_connection(address, timeout=20) as one:
        for pause in (0.5, 0):
            one.sendall(WHOLE)
            said = b""
            while not said.endswith(b"ok"):
                said += one.recv(1000)
            time.sleep(pause)
        one.sendall(WHOLE[:9])
        assert one.recv(1000) == b""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from diffclip.data.fetch_file import fetch_file
from diffclip.errors import DiffCLIPError, InputError

CONTENT = bytes(range(256)) * 12_000


class Site:
    """A server of one file that breaks connections after `cut` bytes as often as `breaks` says."""

    def __init__(self) -> None:
        self.content, self.tag, self.cut, self.breaks, self.ranges = CONTENT, '"one"', 10**6, 0, True
        self.asked: list[str | None] = []
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                wanted = self.headers.get("Range")
                site.asked.append(wanted)
                if self.path != "/list.tsv":
                    self.send_error(404)
                    return
                start = int(wanted[6:-1]) if wanted and site.ranges else 0
                if self.headers.get("If-Range") != site.tag:
                    start = 0
                if start >= len(site.content) > 0:
                    self.send_error(416)
                    return
                body = site.content[start:]
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(body)))
                if site.tag:
                    self.send_header("ETag", site.tag)
                self.end_headers()
                if site.breaks:
                    site.breaks -= 1
                    body = body[: site.cut]
                self.wfile.write(body)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/list.tsv"


@pytest.fixture
def web() -> Iterator[Site]:
    site = Site()
    threading.Thread(target=site.server.serve_forever, args=(0.02,), daemon=True).start()
    yield site
    site.server.shutdown()
    site.server.server_close()


def test_a_file_comes_whole_and_once(web: Site, tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    target = tmp_path / "deep" / "list.tsv"
    assert fetch_file(web.address, target, lambda *step: told.append(step)) == target
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["list.tsv"]
    assert sum(done for _, done, _ in told) == 3
    assert told[0][0] == "MB of list.tsv"
    assert told[0][2] == 3
    fetch_file(web.address, target)
    assert web.asked == [None]


def test_a_broken_connection_is_gone_on_with(web: Site, tmp_path: Path) -> None:
    web.breaks = 3
    fetch_file(web.address, tmp_path / "list.tsv")
    assert (tmp_path / "list.tsv").read_bytes() == CONTENT
    assert web.asked == [None, "bytes=1000000-", "bytes=2000000-", "bytes=3000000-"]


def test_a_later_call_goes_on_too(web: Site, tmp_path: Path) -> None:
    web.breaks, web.cut = 100, 0
    (tmp_path / ".list.tsv.part").write_bytes(CONTENT[:1000])
    (tmp_path / ".list.tsv.mark").write_text('"one"')
    with pytest.raises(
        DiffCLIPError, match="check the network and start again, what has come is kept"
    ) as raised:
        fetch_file(web.address, tmp_path / "list.tsv")
    assert not isinstance(raised.value, InputError)
    assert len(web.asked) == 4
    assert (tmp_path / ".list.tsv.part").stat().st_size == 1000
    web.breaks = 0
    fetch_file(web.address, tmp_path / "list.tsv")
    assert web.asked[-1] == "bytes=1000-"
    assert (tmp_path / "list.tsv").read_bytes() == CONTENT


@pytest.mark.parametrize("change", ["another file", "no ranges", "no tag", "weak tag"])
def test_parts_are_not_mixed(web: Site, tmp_path: Path, change: str) -> None:
    web.breaks = 1
    if change == "no tag":
        web.tag = ""
    if change == "weak tag":
        web.tag = 'W/"one"'
    web.ranges = change != "no ranges"
    if change == "another file":
        (tmp_path / ".list.tsv.part").write_bytes(b"x" * 1000)
        (tmp_path / ".list.tsv.mark").write_text('"older"')
    fetch_file(web.address, tmp_path / "list.tsv")
    assert (tmp_path / "list.tsv").read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_dropped(web: Site, tmp_path: Path) -> None:
    (tmp_path / ".list.tsv.part").write_bytes(CONTENT + b"more")
    (tmp_path / ".list.tsv.mark").write_text('"one"')
    fetch_file(web.address, tmp_path / "list.tsv")
    assert (tmp_path / "list.tsv").read_bytes() == CONTENT


def test_a_server_that_refuses(web: Site, tmp_path: Path) -> None:
    with pytest.raises(DiffCLIPError, match=r"cannot fetch http://.*/gone: the server says 404"):
        fetch_file(web.address.replace("list.tsv", "gone"), tmp_path / "gone")
    assert len(web.asked) == 1
    assert list(tmp_path.iterdir()) == []


def test_nobody_answers(tmp_path: Path) -> None:
    # a port that nothing listens on
    with pytest.raises(
        DiffCLIPError, match=r"cannot fetch http://127.0.0.1:9/x \(.*refused\): check the network"
    ):
        fetch_file("http://127.0.0.1:9/x", tmp_path / "x")


def test_a_disk_that_refuses_is_named(web: Site, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="a file or folder of that name is in the way"):
        fetch_file(web.address, tmp_path / "file" / "list.tsv")

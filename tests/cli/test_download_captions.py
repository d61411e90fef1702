"""`diffclip data download` for lists of pictures, with a server and a tool that are real."""

import functools
import http.server
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_img2dataset import write_program
from PIL import Image

from diffclip.cli.download import download
from diffclip.data import caption_sets
from diffclip.errors import DiffCLIPError, InputError


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """The address of a list of five pictures, one of which is gone, and a line of no use."""
    folder = tmp_path / "web"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))
    )
    address = f"http://127.0.0.1:{server.server_port}"
    lines = ["useless"]
    for number in range(5):
        lines.append(f"picture {number}\t{address}/{number}.jpg")
        if number != 4:
            Image.new("RGB", (30, 20), (number * 50, 0, 0)).save(folder / f"{number}.jpg")
    (folder / "list.tsv").write_text("\n".join(lines) + "\n")
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"{address}/list.tsv"
    server.shutdown()
    server.server_close()


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool on PATH that makes shards of two pairs."""
    program = write_program(tmp_path / "bin" / "img2dataset")
    monkeypatch.setenv("PATH", os.pathsep.join([str(program.parent), os.environ["PATH"]]))
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("FAKE_SHARD", "2")


@pytest.mark.usefixtures("environment")
def test_a_list_becomes_shards(web: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "my sets"
    download(["cc3m"], root, url_list=web, processes=3, threads=5)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == f"cc3m: Conceptual Captions 3M, from {web}"
    assert lines[1] == "1 lines of the list left out: no address or no caption"
    assert lines[2].startswith(
        "5 pairs in the list; about 4 pictures can be expected (70 % came in January 2024"
    )
    assert "free (40 KB a picture" in lines[3]
    assert lines[4].startswith("about 1 min with 3 processes")
    assert "--processes_count 3 --thread_count 5" in lines[5]
    assert "cc3m/img2dataset.log" in lines[6]
    assert any(line.startswith("pictures that came") and line.endswith("80.0 %") for line in lines)
    assert any("HTTP Error 404" in line for line in lines)
    assert lines[-1] == f"Next: diffclip data check '{root}/cc3m/train'"
    with tarfile.open(root / "cc3m" / "train" / "00000.tar") as tar:
        assert tar.extractfile("000000001.txt").read() == b"picture 1"
        assert Image.open(io.BytesIO(tar.extractfile("000000001.jpg").read())).size == (30, 20)
    download(["cc3m"], root, url_list=web)
    assert "5 pairs are done already, 4 pictures of them are there" in capsys.readouterr().out
    assert len((tmp_path / "calls").read_text().splitlines()) == 1


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_stopped_it_ends_the_tool_and_goes_on_later(
    web: str, tmp_path: Path, number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "sets"
    command = [
        sys.executable,
        "-m",
        "diffclip.cli",
        "data",
        "download",
        "cc3m",
        "--root",
        str(root),
        "--list",
        web,
    ]
    process = subprocess.Popen(
        command,
        env=os.environ | {"FAKE_HANG": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "calls.hangs").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == code
    assert errors.startswith("diffclip: ")
    assert len(errors.splitlines()) == 1
    shards = root / "cc3m" / "train"
    assert sorted(path.name for path in shards.iterdir()) == ["00000.tar", "00000_stats.json"]
    download(["cc3m"], root, url_list=web)
    assert "2 pairs are done already" in capsys.readouterr().out
    assert len(list(shards.glob("*.tar"))) == 3


@pytest.mark.usefixtures("environment")
def test_a_failing_tool_is_one_line(web: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CODE", "7")
    message = r"failed with exit code 7 \(ValueError: the list is odd\); its log is .*/cc3m/img2dataset.log$"
    with pytest.raises(DiffCLIPError, match=message):
        download(["cc3m"], tmp_path, url_list=web)


@pytest.mark.usefixtures("environment")
def test_nothing_comes(tmp_path: Path) -> None:
    (tmp_path / "own.tsv").write_text("a dog\thttp://127.0.0.1:9/1.jpg\n")
    with pytest.raises(
        DiffCLIPError, match=r"not one picture of cc3m came \(<urlopen error .*refused>\): check"
    ) as raised:
        download(["cc3m"], tmp_path / "sets", url_list=str(tmp_path / "own.tsv"))
    assert not isinstance(raised.value, InputError)


@pytest.mark.usefixtures("environment")
def test_the_tool_is_asked_for_first(web: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(InputError, match="is not installed: run pipx install img2dataset"):
        download(["cc3m"], tmp_path / "sets", url_list=web)
    assert not (tmp_path / "sets").exists()
    download(["cc3m"], tmp_path / "sets", url_list=web, img2dataset=tmp_path / "bin" / "img2dataset")
    assert (tmp_path / "calls").exists()


@pytest.mark.usefixtures("environment")
def test_too_small_a_disk_is_refused_before_anything(
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # more pictures than any disk holds, and a list that nobody serves
    large = replace(caption_sets.CAPTION_SETS["cc12m"], pairs=10**15, addresses="http://127.0.0.1:9/list.tsv")
    monkeypatch.setitem(caption_sets.CAPTION_SETS, "cc12m", large)
    with pytest.raises(InputError, match=r"cc12m needs about \d+ GB more, but .* are free: make room"):
        download(["cc12m"], tmp_path / "sets")
    assert "pictures can be expected (62 %" in capsys.readouterr().out
    assert not (tmp_path / "sets").exists()


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (
            ["laion400m"],
            {},
            r"laion400m: its list is given to those who sign in at https.*then give it with --list",
        ),
        (
            ["cc3m", "cc12m"],
            {"url_list": "x.tsv"},
            "--list and --columns are for one set to train on, such as cc3m",
        ),
        (["cifar10"], {"url_list": "x.tsv"}, "--list and --columns are for one set to train on"),
        (["cc3m"], {"columns": "a,b"}, "--columns names the columns of a list of your own: give --list"),
        (
            ["cc3m"],
            {"columns": "a", "url_list": "x.tsv"},
            "--columns 'a' is not two names: write URL,CAPTION",
        ),
        (["cc12"], {}, "unknown published set 'cc12': did you mean 'cc12m'"),
    ],
)
def test_what_does_not_go_together(
    tmp_path: Path, names: list[str], options: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        download(names, tmp_path, **options)
    assert list(tmp_path.iterdir()) == []

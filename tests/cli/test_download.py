"""`diffclip data download`: sets, and lists of images with a server and a tool that are real."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_img2dataset import write_program
from file_server import served
from made_sets import write_dtd
from PIL import Image

from diffclip.cli.download import download
from diffclip.data.published_sets import PUBLISHED
from diffclip.errors import DiffCLIPError, InputError


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """The address of a list of five images, one of which is gone, and lines of no use."""
    folder = tmp_path / "web"
    folder.mkdir()
    with served(folder) as (address, _):
        lines = ["useless", 'a "quote\tno address', f"\t{address}/0.jpg"]
        for number in range(5):
            lines.append(f'image "{number}\t{address}/{number}.jpg')
            if number != 4:
                Image.new("RGB", (30, 20), (number * 50, 0, 0)).save(folder / f"{number}.jpg")
        (folder / "list.tsv").write_text("\n".join(lines) + "\n")
        yield f"{address}/list.tsv"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program on PATH that makes shards of two pairs."""
    program = write_program(tmp_path / "bin" / "img2dataset")
    monkeypatch.setenv("PATH", os.pathsep.join([str(program.parent), os.environ["PATH"]]))
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("FAKE_SHARD", "2")


@pytest.mark.usefixtures("tool")
def test_a_list_becomes_shards(web: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "my sets"
    download(["cc3m"], root, url_list=web, processes=3, threads=5)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == f"cc3m: Conceptual Captions 3M, from {web}"
    assert lines[1].startswith("img2dataset fetches each image")
    for words in ("--processes_count 3 --thread_count 5", "--image_size 224", "--resize_mode keep_ratio"):
        assert words in lines[2]
    assert "images that came: 4 (80.0 %)" in lines
    assert any("HTTP Error 404" in line and line.endswith("1 (20.0 %)") for line in lines)
    assert lines[-1] == f"Next: diffclip data check '{root}/cc3m/train'"
    with tarfile.open(root / "cc3m" / "train" / "00000.tar") as tar:
        assert tar.extractfile("000000001.txt").read() == b'image "1'
        assert Image.open(io.BytesIO(tar.extractfile("000000001.jpg").read())).size == (30, 20)


@pytest.mark.usefixtures("tool")
def test_stopped_it_ends_the_tool_and_goes_on_later(web: str, tmp_path: Path) -> None:
    root = tmp_path / "sets"
    words = ["data", "download", "cc3m", "--root", str(root), "--list", web]
    process = subprocess.Popen(
        [sys.executable, "-m", "diffclip.cli", *words],
        env=os.environ | {"FAKE_HANG": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "calls.hangs").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    _, errors = process.communicate()
    assert process.returncode == 75
    assert errors.splitlines()[-1].startswith("diffclip: ")
    shards = root / "cc3m" / "train"
    assert len(list(shards.glob("*_stats.json"))) == 1
    download(["cc3m"], root, url_list=web)
    assert len(list(shards.glob("*_stats.json"))) == len(list(shards.glob("*.tar"))) == 3


@pytest.mark.usefixtures("tool")
def test_failures_of_lists_are_one_line(web: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.tsv").write_text("a dog\thttp://127.0.0.1:9/1.jpg\n")
    (tmp_path / "bad.tsv").write_text("nothing\n")
    gone = "http://127.0.0.1:9/list.tsv"
    for own, words in (
        (str(tmp_path / "bad.tsv"), "holds no line with an address and a caption"),
        (str(tmp_path / "none.tsv"), "does not exist"),
        (gone, rf"cannot fetch {gone} \(.+\): check the network"),
        # a bad list has begun nothing
        (str(tmp_path / "own.tsv"), "not one image of cc3m came: check the network"),
        (web, r"holds shards of another list \(.*own\.tsv\): choose another --root"),
    ):
        with pytest.raises(DiffCLIPError, match=words) as raised:
            download(["cc3m"], tmp_path / "root", url_list=own)
        assert "\n" not in str(raised.value)
    (tmp_path / "web" / "page.tsv").write_text("<html>busy</html>\n")
    page = web.replace("list.tsv", "page.tsv")
    with pytest.raises(InputError, match="holds no line"):
        download(["cc3m"], tmp_path / "later", url_list=page)
    shutil.copy(tmp_path / "web" / "list.tsv", tmp_path / "web" / "page.tsv")
    download(["cc3m"], tmp_path / "later", url_list=page)
    monkeypatch.setenv("FAKE_CODE", "7")
    with pytest.raises(DiffCLIPError, match="img2dataset failed with exit code 7"):
        download(["cc3m"], tmp_path / "sets", url_list=web)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(InputError, match="is not installed: run pipx install img2dataset"):
        download(["cc3m"], tmp_path / "sets", url_list=web)


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["laion400m"], {}, r"laion400m: its list is given to those who sign in .*then give it with --list"),
        (["cc3m", "cc12m"], {"url_list": "x.tsv"}, "--list is for one set to train on"),
        (["dtd", "cifar"], {}, "unknown published set 'cifar': did you mean 'cifar10'"),
    ],
)
def test_options_that_do_not_go_together(
    tmp_path: Path, names: list[str], options: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        download(names, tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


def test_what_must_be_done_by_hand_is_printed(tmp_path, capsys):
    write_dtd(tmp_path / "dtd")
    with pytest.raises(InputError, match="flickr30k must be fetched by hand, with the commands above"):
        download(["imagenet1k", "dtd", "flickr30k"], tmp_path)
    out, err = capsys.readouterr()
    imagenet, commands, dtd, _, kaggle, shards = out.splitlines()
    assert imagenet == "imagenet1k: ImageNet, validation images, 6.8 GB, from https://image-net.org/download"
    assert "ILSVRC2012_img_val.tar" in commands
    assert "already" in dtd
    place = tmp_path / "flickr30k"
    assert f"kaggle datasets download -d hsankesara/flickr-image-dataset -p {place}" in kaggle
    assert shards == f"Then, to train on it: diffclip data make-shards {place} {place}"
    assert err == "diffclip: imagenet1k must be fetched by hand, with the commands above\n"


def test_every_failure_is_one_line(tmp_path, capsys, monkeypatch):
    for name in ("imagenet-a", "imagenet-r"):
        # a port that nothing listens on
        gone = replace(PUBLISHED[name], archives=(f"http://127.0.0.1:9/{name}.tar",))
        monkeypatch.setitem(PUBLISHED, name, gone)
    with pytest.raises(DiffCLIPError, match=r"cannot fetch imagenet-r from https://github.com") as raised:
        download(["imagenet-a", "imagenet-r"], tmp_path)
    assert not isinstance(raised.value, InputError)
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == (
        "imagenet-a: ImageNet-A, 688 MB, from https://github.com/hendrycks/natural-adv-examples"
    )
    assert err.startswith("diffclip: cannot fetch imagenet-a")
    assert list(tmp_path.iterdir()) == []

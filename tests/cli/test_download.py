"""`diffclip data download`: sets of a local stand-in for the hub, and lists of images from a local server."""

import csv
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_server import served
from hub_server import served_hub
from made_sets import write_shard_of

from diffclip.cli.data import download
from diffclip.data.download import CAPTION_SETS, fetch
from diffclip.data.open_set import open_set
from diffclip.data.pairs import PairKeys
from diffclip.data.tar_set import TarSet
from diffclip.errors import DiffCLIPError, InputError

PROGRAM = """#!{python}
import json, os, sys
from pathlib import Path

Path(__file__).with_name("calls.json").write_text(json.dumps(sys.argv[1:]))
sys.exit(int(os.environ.get("FAKE_CODE", 0)))
"""


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A local server's list of CC3M: two images and some unusable lines."""
    file = tmp_path / "web" / "list.tsv"
    file.parent.mkdir()
    with served(file.parent) as (address, _):
        lines = ["useless", 'a "quote\tno address', f"\t{address}/0.jpg"]
        lines += [f'image "{number}\t{address}/{number}.jpg' for number in range(2)]
        file.write_text("\n".join(lines) + "\n")
        local_set = CAPTION_SETS["cc3m"]._replace(address=f"{address}/list.tsv")
        monkeypatch.setitem(CAPTION_SETS, "cc3m", local_set)
        yield file


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a fake img2dataset; return the file with the arguments of its last call."""
    program = tmp_path / "bin" / "img2dataset"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(program.parent), os.environ["PATH"]]))
    return program.with_name("calls.json")


def test_download_passes_a_list_to_img2dataset(web, tool, tmp_path, capsys) -> None:
    root = tmp_path / "my sets"
    download(["cc3m"], root, img2dataset=True)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("cc3m: Conceptual Captions 3M, 3.3 million pairs, from http")
    assert "at most 83 GB" in lines[1]
    assert "--image_size 224 --resize_mode keep_ratio" in lines[2]
    assert lines[-1] == f"Next: diffclip data check '{root}/cc3m/train'"
    words = json.loads(tool.read_text())
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options["--output_folder"] == str(root / "cc3m" / "train")
    assert (options["--url_col"], options["--caption_col"]) == ("url", "caption")
    with open(options["--url_list"], newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert [row["caption"] for row in rows] == ['image "0', 'image "1']
    # the same command reuses the downloaded list
    web.unlink()
    download(["cc3m"], root, img2dataset=True)


def test_failures_of_list_downloads_are_one_line(web, tool, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_CODE", "7")

    def refusal() -> str:
        with pytest.raises(DiffCLIPError) as raised:
            download(["cc3m"], tmp_path, img2dataset=True)
        assert "\n" not in str(raised.value)
        return str(raised.value)

    assert "img2dataset failed with exit code 7" in refusal()
    for file in (tmp_path / "cc3m").glob("*.tsv"):
        file.unlink()
    web.write_text("<html>busy</html>\n")
    assert "holds no line with an address and a caption" in refusal()
    (tmp_path / "cc3m" / "list.tsv").unlink()
    web.unlink()
    assert "cannot fetch http://127.0.0.1:" in refusal()
    tool.with_name("img2dataset").unlink()
    assert "is not installed: run pipx install img2dataset" in refusal()


def test_a_set_without_a_repository_and_a_folder_in_the_way_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"sugarcrepe is fetched by hand: \(mkdir -p .*swap_obj}\.json' && curl"
    ):
        download(["cifar10", "sugarcrepe"], tmp_path)
    write_shard_of(tmp_path / "flickr8k/train/0.tar", [(0, {"txt": b"of make-shards"})])
    with pytest.raises(
        InputError, match="flickr8k holds files of another origin: move it, or choose another"
    ):
        fetch("clip-benchmark/wds_flickr8k", tmp_path / "flickr8k")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*: a file is in the way, where the path needs"):
        fetch("clip-benchmark/wds_flickr8k", tmp_path / "file" / "flickr8k")
    with pytest.raises(InputError, match="--img2dataset is for cc3m and cc12m, not cifar10: leave it out"):
        download(["cc3m", "cifar10"], tmp_path, img2dataset=True)


def test_whole_shards_come_from_the_hub_and_train_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = tmp_path / "hub" / "pixparse" / "cc3m-wds"
    pair = {"jpg": b"an image", "txt": b"a text"}
    for number in range(2):
        write_shard_of(repository / f"cc3m-train-000{number}.tar", [(number, pair)])
    write_shard_of(repository / "cc3m-validation-0000.tar", [(2, pair)])
    other = tmp_path / "hub" / "clip-benchmark" / "wds_vtab-dtd"
    for split in ("train", "test", "default"):
        write_shard_of(other / split / "0.tar", [(0, {"jpg": b"an image", "cls": b"1"})])
        (other / split / "nshards.txt").write_text("1")
    (other / "classnames.txt").write_text("banded\nstriped")
    sets = tmp_path / "sets"
    with served_hub(tmp_path / "hub") as (endpoint, fetched):
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        # of HF_ENDPOINT and HF_HUB_OFFLINE, which the client reads when it is imported
        file = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", file)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        download(["cc3m", "dtd"], sets)
        lines = capsys.readouterr().out.splitlines()
        (sets / "cc3m/train/cc3m-train-0001.tar").unlink()
        download(["cc3m"], sets)
        tars = TarSet("hf://datasets/pixparse/cc3m-wds/*train*.tar", PairKeys().members())
        assert [tars[i].read("txt") for i in range(len(tars))] == [{"txt": b"a text"}] * 2
    assert lines[1].endswith("has 2,905,954 pairs (88%) in whole shards")
    assert lines[2] == f"{sets}/cc3m/train has 2 pairs, 0% of the published list."
    assert sorted(name for name in fetched if name.startswith("cc3m")) == [
        f"cc3m-train-000{number}.tar whole" for number in (0, 0, 1, 1, 1)
    ]
    data = open_set("dtd", "test", sets)
    train = data.beside("train")
    assert train is not None
    assert (data.labels, train.classnames, data.beside("default")) == ([1], ["banded", "striped"], None)

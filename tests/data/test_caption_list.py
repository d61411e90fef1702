import csv
import functools
import http.server
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from diffclip.data.caption_list import prepare_list
from diffclip.data.caption_sets import CAPTION_SETS
from diffclip.errors import InputError

CC3M, CC12M, LAION = (CAPTION_SETS[name] for name in ("cc3m", "cc12m", "laion400m"))


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def list_site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    folder = tmp_path / "site"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def lines_of(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file, delimiter="\t"))


def test_the_published_list_is_fetched_and_cleaned(list_site: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = list_site
    odd = 'say "cheese" , and \x85 or \r two'
    content = [
        f"{odd}\thttp://a/1.jpg",
        "no address\tftp://a/2.jpg",
        "\thttp://a/3.jpg",
        "one column",
        "x\ty\tz",
    ]
    (folder / "GCC.tsv").write_bytes(
        "\n".join([*content, '"open\tHTTPS://a/4.jpg', ""]).encode() + b"caf\xe9\thttp://a/5"
    )
    entry = replace(CC3M, addresses=f"{address}/GCC.tsv?token=1")
    place = tmp_path / "sets" / "cc3m"
    found = prepare_list(entry, place)
    assert (found.kind, found.columns, found.pairs, found.left_out) == ("tsv", ("url", "caption"), 3, 4)
    assert lines_of(found.path) == [
        ["url", "caption"],
        ["http://a/1.jpg", 'say "cheese" , and or two'],
        ["HTTPS://a/4.jpg", '"open'],
        ["http://a/5", "caf\N{REPLACEMENT CHARACTER}"],
    ]
    assert sorted(path.name for path in place.iterdir()) == ["list.json", "urls.tsv"]
    # a second call asks nobody
    (folder / "GCC.tsv").unlink()
    assert prepare_list(entry, place) == found


def test_columns_come_from_the_set_or_from_a_header(tmp_path: Path) -> None:
    own = tmp_path / "own.tsv"
    own.write_text("http://a/1.jpg\ta dog\n")
    assert lines_of(prepare_list(CC12M, tmp_path / "a", str(own)).path)[1] == ["http://a/1.jpg", "a dog"]
    own.write_text("caption\turl\na dog\thttp://a/1.jpg\n")
    assert lines_of(prepare_list(CC12M, tmp_path / "b", str(own)).path)[1:] == [["http://a/1.jpg", "a dog"]]
    own.write_text("TEXT\tURL\na dog\thttp://a/1.jpg\n")
    found = prepare_list(LAION, tmp_path / "c", str(own), ("URL", "TEXT"))
    assert lines_of(found.path)[1:] == [["http://a/1.jpg", "a dog"]]


def test_parquet_is_used_where_it_lies(list_site: tuple[Path, str], tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    with pytest.raises(InputError, match=r"no \.parquet file in .*own"):
        prepare_list(LAION, tmp_path / "x", str(own))
    (own / "part-0.parquet").write_bytes(b"PAR1")
    found = prepare_list(LAION, tmp_path / "laion400m", str(own))
    assert (found.path, found.kind, found.columns, found.pairs) == (own, "parquet", ("URL", "TEXT"), None)
    found = prepare_list(LAION, tmp_path / "y", str(own / "part-0.parquet"), ("url", "alt"))
    assert (found.path, found.columns) == (own / "part-0.parquet", ("url", "alt"))
    folder, address = list_site
    for number in range(3):
        (folder / f"part-{number}.parquet").write_bytes(b"PAR1")
    entry = replace(CAPTION_SETS["coyo700m"], addresses=f"{address}/part-{{0..2}}.parquet")
    found = prepare_list(entry, tmp_path / "coyo700m")
    assert found.path == tmp_path / "coyo700m" / "list"
    assert sorted(path.name for path in found.path.iterdir()) == [
        f"part-{number}.parquet" for number in range(3)
    ]


def test_lists_are_not_mixed(tmp_path: Path) -> None:
    first, second = tmp_path / "first.tsv", tmp_path / "second.tsv"
    first.write_text("a dog\thttp://a/1.jpg\n")
    second.write_text("a cat\thttp://a/2.jpg\n")
    place = tmp_path / "cc3m"
    prepare_list(CC3M, place, str(first))
    assert prepare_list(CC3M, place, str(first)).pairs == 1
    with pytest.raises(
        InputError, match=r"cc3m was begun with the list first\.tsv, 21 bytes: give another --root"
    ):
        prepare_list(CC3M, place, str(second))
    with pytest.raises(InputError, match=r"was begun with the list first\.tsv"):
        prepare_list(CC3M, place)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("gone.tsv", None, r"gone\.tsv does not exist: give a \.tsv"),
        ("list.csv", "a,b", r"list\.csv is neither \.tsv nor \.parquet"),
        ("list.tsv", "a,http://b\n", r"list\.tsv holds no line with an address and a caption"),
    ],
)
def test_lists_of_no_use(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        prepare_list(CC3M, tmp_path / "cc3m", str(tmp_path / name))
    assert not (tmp_path / "cc3m" / "urls.tsv").exists()

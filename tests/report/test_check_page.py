import re
from pathlib import Path

import numpy as np
import pytest
from odd_shards import encoded, smooth_picture, write_odd_shards, write_shard_of

from diffclip.data.check import check
from diffclip.data.corpus import open_corpus
from diffclip.errors import InputError
from diffclip.report.check_page import write_check_page
from diffclip.report.histogram import histogram

pytest.importorskip("imagehash")


def page_of(folder: Path, output: Path, context_length: int = 77) -> str:
    corpus = open_corpus(str(folder))
    result, scan = check(corpus, context_length=context_length)
    assert write_check_page(output, result, scan, corpus, "diffclip data check <x>") == output
    return output.read_text()


def test_the_page_shows_what_was_found(tmp_path: Path) -> None:
    page = page_of(write_odd_shards(tmp_path / "odd"), tmp_path / "page.html")
    sections = re.findall(r"<h2>(.*?)</h2>", page)
    assert sections == [
        "Numbers",
        "Distributions",
        "Samples",
        "Duplicates",
        "Captions",
        "Odd ones",
        "Broken",
        "How it was made",
    ]
    assert "42 of 44 samples can be trained on (95.5&nbsp;%)." in page
    assert "2 times: 0.tar:s01, 1.tar:twin" in page
    assert "3 times: 0.tar:s02, 1.tar:small, 1.tar:worse" in page
    assert "<th scope=row>3 times</th><td>stock photo</td>" in page
    for name in ("cut", "latin", "bare", "blind"):
        assert f"1.tar:{name}</th>" in page
    assert "One colour only" in page
    assert page.count("<figure><img") >= 24


def test_it_loads_nothing_and_believes_no_caption(tmp_path: Path) -> None:
    page = page_of(write_odd_shards(tmp_path / "odd"), tmp_path / "page.html")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; so" in page
    assert "diffclip data check &lt;x&gt;" in page
    sources = re.findall(r'(?:src|href)="([^"]{0,30})', page)
    assert sources
    assert all(source.startswith(("data:image/jpeg;base64,", "#")) for source in sources)
    assert "url(" not in page


def test_what_the_model_does_not_read_is_struck(tmp_path: Path) -> None:
    page = page_of(write_odd_shards(tmp_path / "odd"), tmp_path / "page.html")
    read, struck = re.findall(r'<li>(.*?) <span class="beyond">(.*?)</span></li>', page)[0]
    # the start, 75 words and the end are 77 tokens
    assert len(read.split()) == 75
    assert struck.endswith("the end")


def test_plain_shards_make_a_plain_page(tmp_path: Path) -> None:
    samples = [
        (f"{i}", {"jpg": encoded(smooth_picture(i)), "txt": f"a\x00b {i} \ufffd".encode()}) for i in range(3)
    ]
    write_shard_of(tmp_path / "0.tar", samples)
    page = page_of(tmp_path, tmp_path / "page.html")
    assert "All 3 samples can be trained on." in page
    assert "<h3>The same file</h3><p>None.</p>" in page
    assert "<h2>Broken</h2><p>Nothing.</p>" in page
    assert "3 drawn at random" in page
    assert "Smallest" not in page


def test_lone_surrogates_do_not_break_it(tmp_path: Path) -> None:
    write_shard_of(
        tmp_path / "0.tar",
        [("a\udcff", {"jpg": encoded(smooth_picture(1)), "json": b'{"caption": "\\ud800 x"}'})],
    )
    assert "? x" in page_of(tmp_path, tmp_path / "page.html")


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="in the way"):
        page_of(write_odd_shards(tmp_path / "odd"), tmp_path / "file" / "page.html")


def heights(drawn: str) -> list[float]:
    return [float(height) for height in re.findall(r'<rect [^>]*height="([\d.]+)"', drawn)]


def test_whole_numbers_have_a_bar_each() -> None:
    drawn = histogram(np.array([1, 1, 2, 4]), "A & B")
    assert heights(drawn) == [120, 60, 60]
    assert "<title>1: 2</title>" in drawn
    assert ">A &amp; B</figcaption>" in drawn
    assert '<text x="400" y="136" text-anchor="end">4</text>' in drawn


def test_many_values_share_bars_and_giants_the_last() -> None:
    values = np.concatenate([np.arange(1000), [10**6]])
    drawn = histogram(values, "x")
    assert len(heights(drawn)) <= 36
    assert "and more</text>" in drawn
    total = sum(int(count.replace(",", "")) for count in re.findall(r": ([\d,]+)</title>", drawn))
    assert total == 1001


def test_equal_values_and_a_mark() -> None:
    assert heights(histogram(np.array([1.5, 1.5]), "x")) == [120]
    assert heights(histogram(np.array([7, 7]), "x")) == [120]
    values = np.array([3] * 200 + [90])
    assert "<line" in histogram(values, "x", 77.5)
    assert "<line" not in histogram(values, "x", 100.5)

import json
import os
import shutil
from pathlib import Path

import in_process
import pytest
from PIL import Image

from diffclip.errors import InputError


@pytest.fixture
def call(model_folder):
    def run(*arguments: object) -> tuple[str, str]:
        """Return stdout and stderr of `diffclip search`, or raise its exception."""
        words = [*map(str, arguments), *(() if "--model" in arguments else ("--model", str(model_folder)))]
        return in_process.call("search", *words)

    return run


@pytest.fixture
def photos(image_folder, tmp_path):
    return Path(shutil.copytree(image_folder, tmp_path / "photos"))


def hits(printed):
    return [json.loads(line) for line in printed.splitlines()]


def test_search_by_text_and_by_image_prints_json(call, photos):
    printed, stderr = call(photos, "a red image", "--json")
    results = hits(printed)
    assert [hit["rank"] for hit in results] == [1, 2, 3]
    assert sorted(hit["path"] for hit in results) == sorted(str(file) for file in photos.iterdir())
    assert all(-1 <= hit["score"] <= 1 for hit in results)
    assert stderr == "diffclip: index of 3 images: 3 added, 0 changed, 0 removed\n"
    printed, stderr = call(photos, "--image", photos / "green.png", "--json", "--top", 1)
    assert [Path(hit["path"]).name for hit in hits(printed)] == ["green.png"]
    assert hits(printed)[0]["score"] == pytest.approx(1, abs=1e-3)
    assert stderr == ""


def test_table_escapes_names_and_every_search_lists_broken_images(call, photos):
    (photos / "[bold]x.png").write_bytes((photos / "red.png").read_bytes())
    (photos / "new\nline.png").write_bytes((photos / "red.png").read_bytes())
    os.link(photos / "red.png", os.path.join(os.fsencode(photos), b"not \xff utf-8.png"))
    (photos / "cut\n.jpg").write_bytes(b"\xff\xd8")
    for _ in range(2):
        table, stderr = call(photos, "a red image")
        assert "cosine" in table
        compact = table.replace("\n", "").replace(" ", "")
        for name in ("[bold]x.png", "new\\nline.png", "not\\udcffutf-8.png"):
            assert name in compact
        assert stderr.splitlines()[-1].startswith("diffclip: skipped 1 of 7 files: cut\\n.jpg: ")


def test_index_option_sets_the_folder_and_changes_are_reported(call, photos, tmp_path):
    call(photos, "red", "--index", tmp_path / "place")
    assert (tmp_path / "place" / "images.jsonl").is_file()
    assert not (Path(os.environ["XDG_CACHE_HOME"]) / "diffclip").exists()
    (photos / "green.png").unlink()
    Image.new("RGB", (8, 8)).save(photos / "black.png")
    _, stderr = call(photos, "red", "--index", tmp_path / "place")
    assert stderr == "diffclip: index of 3 images: 1 added, 0 changed, 1 removed\n"


@pytest.mark.parametrize("suffix", [".png", ".SVG"])
def test_sheet_is_written_as_png_or_svg(call, photos, tmp_path, suffix):
    (photos / "a $x$ name 日本.png").write_bytes((photos / "red.png").read_bytes())
    sheet = tmp_path / f"sheet{suffix}"
    _, stderr = call(photos, "costs $5 or $6", "--sheet", sheet)
    assert stderr.splitlines()[1:] == [f"diffclip: wrote {sheet}"]
    header = sheet.read_bytes()[:8]
    assert header == b"\x89PNG\r\n\x1a\n" if suffix == ".png" else header.startswith(b"<?xml")
    (photos / "red.png").unlink()
    call(photos, "--image", photos / "blue.png", "--sheet", sheet)
    assert sheet.stat().st_size > 1000


def test_unwritable_index_is_searched_without_an_update(call, photos, tmp_path, monkeypatch):
    index = tmp_path / "place"
    call(photos, "red", "--index", index)
    Image.new("RGB", (8, 8)).save(photos / "black.png")

    def refuse(file):
        raise InputError(f"cannot write {file}")

    monkeypatch.setattr("diffclip.search.index.check_writable", refuse)
    printed, stderr = call(photos, "red", "--index", index, "--json")
    assert len(hits(printed)) == 3
    assert stderr.startswith(f"diffclip: the index is not up to date: cannot write {index}")

import os
import shutil
import time

import pytest
from PIL import Image

from diffclip.errors import InputError
from diffclip.focus import recording
from diffclip.web.folder import SearchedFolder
from diffclip.web.markup import gallery

pytest.importorskip("faiss")


@pytest.fixture(autouse=True)
def cache_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def updated(folder, models):
    searched = SearchedFolder(folder, models)
    searched.start()
    end = time.monotonic() + 60
    while searched.updating and time.monotonic() < end:
        time.sleep(0.02)
    return searched


def test_a_picture_finds_itself_with_each_model(photos, plain, differential):
    searched = updated(photos, [("Plain", plain), ("Differential", differential)])
    assert searched.status().count("4 pictures, 1 skipped that cannot be read") == 2
    for model in ("Plain", "Differential"):
        for name in ("green.png", "below/grey.png"):
            hits = searched.search(model, Image.open(photos / name).convert("RGB"), 2)
            assert (hits[0][0], hits[0][1]) == (name, pytest.approx(1, abs=1e-2))
            assert all(uri.startswith("data:image/webp;base64,") for _, _, uri in hits)
    assert len(searched.search("Plain", "a red square", 10)) == 4
    with pytest.raises(InputError, match="empty"):
        searched.search("Plain", "  ", 3)
    searched.close()


def test_what_links_lead_to_outside_is_not_shown(photos, plain, tmp_path):
    folder = tmp_path / "linked"
    shutil.copytree(photos, folder)
    searched = updated(folder, [("Plain", plain)])
    (folder / "red.png").unlink()
    (folder / "red.png").symlink_to(photos.parent / "neighbour.png")
    (folder / "blue.png").unlink()
    uris = {name: uri for name, _, uri in searched.search("Plain", "anything", 10)}
    assert uris["red.png"] is None
    assert uris["blue.png"] is None
    assert uris["green.png"]
    searched.close()


def test_a_folder_without_pictures(plain, tmp_path):
    (tmp_path / "none" / ".hidden").mkdir(parents=True)
    (tmp_path / "none" / ".hidden" / "a.png").touch()
    (tmp_path / "none" / "a.txt").touch()
    with pytest.raises(InputError, match=r"no picture in folder .*none: give --folder one with"):
        SearchedFolder(tmp_path / "none", [("Plain", plain)])
    with pytest.raises(InputError):
        SearchedFolder(tmp_path / "gone", [("Plain", plain)])


def test_what_stops_an_update_is_said(plain, tmp_path):
    (tmp_path / "one.png").touch()
    searched = SearchedFolder(tmp_path, [("Plain", plain)])
    (tmp_path / "one.png").unlink()
    searched._update()
    assert searched.status().startswith("not updated: no picture in folder")
    assert searched.search("Plain", "x", 3) == []
    searched.close()


def test_an_update_while_somebody_looks(photos, differential):
    searched = SearchedFolder(photos, [("Differential", differential)])
    with recording(differential.model, "visual") as seen:
        searched._update()
        assert seen == []
    assert searched.status().startswith("4 pictures")
    searched.close()


def test_a_name_that_is_no_text(photos, plain, tmp_path):
    folder = tmp_path / os.fsdecode(b"dossier-\xe9t\xe9")
    folder.mkdir()
    shutil.copy(photos / "red.png", folder / os.fsdecode(b"caf\xe9.png"))
    searched = updated(folder, [("Plain", plain)])
    html = gallery(searched.search("Plain", "a square", 3))
    assert "caf\N{REPLACEMENT CHARACTER}.png".encode() in html.encode()
    searched.close()


def test_an_update_ends_when_the_page_closes(photos, plain, monkeypatch):
    searched = SearchedFolder(photos, [("Plain", plain)])
    searched._stop.set()
    searched.start()
    searched.close()
    assert not searched._thread.is_alive()
    assert searched.updating

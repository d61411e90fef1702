import errno
import os

import pytest

from diffclip.data.images import find_images
from diffclip.errors import InputError
from diffclip.search.scan import Unreadable, real_folder, scan


def names(folder, unreadable=None):
    return {entry.path for entry in scan(folder, [] if unreadable is None else unreadable)}


def test_what_find_images_finds_with_size_and_time(folder, draw):
    draw(folder / ".hidden.png", 20)
    draw(folder / ".hidden" / "a.png", 21)
    draw(folder / "LOUD.PNG", 22)
    (folder / "notes.txt").write_text("no picture")
    found = {entry.path: entry for entry in scan(folder, [])}
    assert {folder / os.fsdecode(path) for path in found} == set(find_images([folder]))
    status = (folder / "LOUD.PNG").stat()
    assert (found[b"LOUD.PNG"].size, found[b"LOUD.PNG"].mtime) == (status.st_size, status.st_mtime_ns)


def test_a_listing_that_breaks_off_is_told_and_is_taken_an_entry_at_a_time(folder, monkeypatch):
    original, listed = os.scandir, []

    class BreaksOff:
        def __init__(self, path):
            self.path = os.fsdecode(path)
            self.listing = original(path)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.listing.close()

        def __iter__(self):
            for entry in self.listing:
                listed.append(entry.name)
                yield entry
            if self.path.rstrip("/").endswith(broken):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    whole = names(folder)
    monkeypatch.setattr(os, "scandir", BreaksOff)
    broken, unreadable = "more", []
    assert names(folder, unreadable) == whole
    assert unreadable == [Unreadable(b"more", os.strerror(errno.EIO))]
    listed.clear()
    first = next(scan(folder, []))
    assert listed[-1] == first.path
    broken = "my pictures"
    with pytest.raises(InputError, match=r"cannot read .*my pictures: Input/output error"):
        names(folder)


def test_links_are_followed_to_files_inside_only(folder, draw, tmp_path):
    draw(tmp_path / "outside" / "secret.png", 30)
    before = names(folder)
    (folder / "loop").symlink_to(folder)
    (folder / "up").symlink_to("..")
    (folder / "out.png").symlink_to(tmp_path / "outside" / "secret.png")
    (folder / "out").symlink_to(tmp_path / "outside")
    (folder / "nowhere.png").symlink_to("nothing")
    (folder / "itself.png").symlink_to("itself.png")
    (folder / "in.png").symlink_to("00.png")
    unreadable: list[Unreadable] = []
    assert names(folder, unreadable) == before | {b"in.png"}
    assert not unreadable
    # a name that only begins as the folder's does lies outside
    draw(tmp_path / "my pictures too" / "x.png", 31)
    (folder / "beside.png").symlink_to("../my pictures too/x.png")
    assert names(folder) == before | {b"in.png"}


def test_what_is_no_regular_file_is_passed_over_and_nothing_waits_for_a_pipe(folder):
    before = names(folder)
    os.mkfifo(folder / "pipe.png")
    (folder / "folder.png").mkdir()
    assert names(folder) == before


def test_names_that_are_no_text(folder, draw):
    for name in (b"new\nline.png", b"not \xff utf-8.png", "日本.png".encode()):
        os.link(folder / "00.png", os.path.join(os.fsencode(folder), name))
        assert name in names(folder)


def test_a_path_longer_than_the_system_takes_is_told(folder):
    here = os.open(folder, os.O_RDONLY)
    try:
        at = here
        for _ in range(20):
            os.mkdir("d" * 250, dir_fd=at)
            at = os.open("d" * 250, os.O_RDONLY, dir_fd=at)
    finally:
        os.close(here)
    unreadable: list[Unreadable] = []
    assert len(names(folder, unreadable)) == 12
    assert "too long" in unreadable[0].reason


def test_no_folder(folder, tmp_path):
    with pytest.raises(InputError, match="does not exist: give a folder"):
        real_folder(tmp_path / "missing")
    with pytest.raises(InputError, match="is a file: give a folder"):
        real_folder(folder / "00.png")
    (tmp_path / "link").symlink_to(folder)
    assert real_folder(tmp_path / "link") == folder.resolve()
    with pytest.raises(InputError, match="cannot read"):
        names(tmp_path / "missing")

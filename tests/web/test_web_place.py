import os
import tempfile
import time

from diffclip.web.place import uploads_folder


def test_what_was_left_is_removed_and_what_is_used_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old = time.time() - 3600
    left, young = tmp_path / "diffclip-explore-left", tmp_path / "diffclip-explore-young"
    other, link = tmp_path / "other", tmp_path / "diffclip-explore-link"
    for folder in (left, young, other):
        (folder / "below").mkdir(parents=True)
    link.symlink_to(other)
    with uploads_folder() as used:
        for folder in (left, other, used):
            os.utime(folder, (old, old))
        with uploads_folder() as second:
            assert used.is_dir()
            assert second != used
            assert not left.exists()
            assert (young / "below").is_dir()
            assert (other / "below").is_dir()
    assert not used.exists()

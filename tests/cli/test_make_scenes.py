import pytest

from diffclip.cli.make_scenes import make_scenes
from diffclip.errors import InputError

SETTINGS = {"size": 16, "train": 2, "val": 1, "test": 1, "seed": 0, "workers": 1}


def test_draws_once_and_says_so(tmp_path, capsys):
    make_scenes(tmp_path / "set", **SETTINGS)
    assert "Drew the scenes in" in capsys.readouterr().out
    assert (tmp_path / "set" / "captions" / "train" / "0.tar").exists()
    make_scenes(tmp_path / "set", **SETTINGS)
    assert "reused" in capsys.readouterr().out


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "set").write_text("a file")
    with pytest.raises(InputError, match="a file or folder of that name is in the way"):
        make_scenes(tmp_path / "set", **SETTINGS)

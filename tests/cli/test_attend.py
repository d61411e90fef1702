import re
from functools import partial
from pathlib import Path

import in_process
import numpy as np
import pytest
from PIL import Image
from tiny import WORDED

import diffclip
from diffclip import InputError
from diffclip.config import variant_config

call = partial(in_process.call, "attend")
TEXTS = ("--text", "a mug", "--text", "a lamp")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain CLIP with larger images and more patches than the differential model in `model_folder`."""
    folder = tmp_path_factory.mktemp("models") / "plain"
    vision = WORDED["vision"] | {"image_size": 24, "heads": 2}
    diffclip.save_weights(diffclip.CLIP(variant_config("CLIP", WORDED | {"vision": vision}), seed=0), folder)
    return folder


def test_attend_writes_one_image_as_png_svg_pdf_and_npz(model_folder, plain, image_folder, tmp_path):
    files = [tmp_path / f"out.{suffix}" for suffix in ("png", "SVG", "pdf", "npz")]
    outputs = [argument for file in files for argument in ("--output", file)]
    models = ("--model", plain, "--model", model_folder)
    printed, _ = call(image_folder / "red.png", *TEXTS, *models, *outputs)
    assert printed == "".join(f"wrote {file}\n" for file in files)
    assert Image.open(files[0]).size[0] > 500
    assert files[1].read_text().startswith("<?xml")
    assert files[2].read_bytes().startswith(b"%PDF")
    arrays = np.load(files[3])
    assert arrays["models"].tolist() == ["CLIP", "DiffCLIP"]
    assert arrays["texts"].tolist() == ["a mug", "a lamp"]
    assert arrays["images"].tolist() == [str(image_folder / "red.png")]
    assert arrays["maps_0"].shape == (1, 2, 3, 3)
    assert arrays["maps_1"].shape == (1, 2, 2, 2)
    assert arrays["cosines"].shape == (2, 1, 2)
    assert [piece.strip() for piece in arrays["tokens"][0, 1]] == ["a", "lamp"]
    assert arrays["token_relevance"].shape == (2, 1, 2, 2)
    np.testing.assert_allclose(arrays["probabilities"].sum(-1), 1, rtol=1e-5)


def test_patch_and_method_options_appear_in_the_output_files(model_folder, plain, image_folder, tmp_path):
    file = tmp_path / "maps.npz"
    models = ("--model", plain, "--model", model_folder)
    call(image_folder, *models, "--patch", "1,2", "--output", file, "--output", tmp_path / "maps.svg")
    lines = re.findall(r"<!-- (.*) -->", (tmp_path / "maps-1.svg").read_text())
    assert "the patch in row 1, column 2" in " ".join(lines)
    assert np.load(file)["maps_0"].shape == (3, 1, 3, 3)
    call(image_folder / "red.png", *TEXTS, *models, "--method", "grad-eclip", "--output", file)
    assert str(np.load(file)["method"]) == "grad-eclip"


def test_words_are_printed_with_their_relevance(model_folder, image_folder, tmp_path):
    file = tmp_path / "maps.npz"
    options = ("--model", model_folder, "--method", "legrad", "--words", "--output", file)
    out, _ = call(image_folder / "red.png", *TEXTS, *options)
    relevance = np.load(file)["token_relevance"][0, 0, 1]
    row = next(line.split() for line in out.splitlines() if line.split()[-3:-2] == ["lamp"])
    assert float(row[-2]) == pytest.approx(relevance[1], rel=0.01)
    with pytest.raises(InputError, match="--words is about texts"):
        call(image_folder / "red.png", "--model", model_folder, "--words")


def test_default_without_text_is_class_token_attention(model_folder, image_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call(image_folder, "--model", model_folder, "--output", "default.npz")
    explicit = ("--method", "attention", "--layers", "1", "--output", "named.npz")
    call(image_folder, "--model", model_folder, *explicit)
    default, explicit = np.load("default.npz"), np.load("named.npz")
    assert (default["maps_0"] == explicit["maps_0"]).all()
    assert default["maps_0"].shape == (3, 1, 2, 2)
    assert str(default["method"]) == "attention"
    assert "cosines" not in default
    assert call(image_folder / "red.png", "--model", model_folder)[0] == "wrote attend.png\n"


def test_map_without_a_head_is_the_mean_over_heads(plain, image_folder, tmp_path):
    maps = []
    for head in ("1", "2", None):
        file = tmp_path / f"{head}.npz"
        call(image_folder, "--model", plain, "--output", file, *(("--head", head) if head else ()))
        maps.append(np.load(file)["maps_0"])
    assert not np.allclose(maps[0], maps[1])
    np.testing.assert_allclose((maps[0] + maps[1]) / 2, maps[2], rtol=1e-5)
    call(image_folder, *TEXTS, "--model", plain, "--head", "2", "--output", tmp_path / "x.npz")


def test_models_of_the_same_variant_get_distinct_labels(save_model, image_folder, tmp_path):
    a_first, b_second = save_model(tmp_path / "a" / "first"), save_model(tmp_path / "b" / "second", seed=1)
    b_first = save_model(tmp_path / "b" / "first", seed=2)
    labels = []
    for models in ((a_first,), (a_first, b_second), (a_first, b_first)):
        options = [argument for model in models for argument in ("--model", model)]
        call(image_folder / "red.png", "--text", "x", *options, "--output", tmp_path / "x.npz")
        labels.append(np.load(tmp_path / "x.npz")["models"].tolist())
    assert labels == [["DiffCLIP"], ["first", "second"], [str(a_first), str(b_first)]]

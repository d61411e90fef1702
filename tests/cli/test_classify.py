import json
import shutil
import subprocess
import sys
from functools import partial

import in_process
import pytest
import torch

from diffclip.cli.classify import parse_labels
from diffclip.errors import InputError

call = partial(in_process.call, "classify")


def test_probabilities_are_the_models(model_folder, pictures):
    import diffclip
    from diffclip.data.images import read_image

    labels = ["red", "green", "blue"]
    printed, _ = call(pictures, "--labels", "red, green, blue", "--model", model_folder, "--json")
    results = [json.loads(line) for line in printed.splitlines()]
    assert [result["image"] for result in results] == [str(pictures / f"{n}.png") for n in sorted(labels)]
    model, preprocess, tokenizer = diffclip.load(model_folder)
    with torch.no_grad():
        texts = model.encode_text(tokenizer([f"a photo of a {label}." for label in labels]), normalize=True)
        for result in results:
            image = model.encode_image(preprocess(read_image(result["image"]))[None], normalize=True)
            wanted = (model.logit_scale.exp() * image @ texts.T).softmax(-1)[0]
            expected = dict(zip(labels, wanted.tolist(), strict=True))
            assert result["probabilities"] == pytest.approx(expected, abs=1e-5)
            assert result["label"] == labels[int(wanted.argmax())] == next(iter(result["probabilities"]))
            assert sum(result["probabilities"].values()) == pytest.approx(1)


def test_table_with_bars(model_folder, pictures):
    table, _ = call(pictures / "red.png", "--labels", "red,green", "--model", model_folder)
    assert "red" in table
    assert "█" in table
    assert "%" in table


def test_top_template_and_batches(model_folder, pictures, monkeypatch):
    common = (pictures, "--labels", "red,green,blue", "--model", model_folder, "--json")
    whole, _ = call(*common)
    monkeypatch.setattr("diffclip.cli.classify._BATCH", 1)
    assert call(*common)[0].count("\n") == 3
    first, _ = call(*common, "--top", 1)
    assert all(len(json.loads(line)["probabilities"]) == 1 for line in first.splitlines())
    other, _ = call(*common, "--template", "a bad drawing of one {c}")
    assert other != whole
    with pytest.raises(InputError, match=r"'no place' has no place for the label: write \{c\}"):
        call(*common, "--template", "no place")


def test_names_that_look_like_markup_are_shown_as_they_are(model_folder, pictures, tmp_path):
    shutil.copy(pictures / "red.png", tmp_path / "[bold]x.png")
    table, _ = call(tmp_path / "[bold]x.png", "--labels", "[red]a[/red],b", "--model", model_folder)
    assert "[red]a[/red]" in table
    assert "[bold]x.png" in table.replace("\n", "").replace(" ", "")


def test_a_broken_picture_among_many_is_left_out_and_named(model_folder, pictures, tmp_path):
    folder = tmp_path / "mixed"
    shutil.copytree(pictures, folder)
    (folder / "broken.jpg").write_bytes((folder / "red.png").read_bytes()[:60])
    (folder / "empty.png").touch()
    printed, errors = call(folder, "--labels", "red,green", "--model", model_folder, "--json")
    assert printed.count("\n") == 3
    (line,) = errors.splitlines()
    assert line.startswith("diffclip: skipped 2 of 5 images: ")
    assert "broken.jpg: is cut short" in line
    assert "empty.png: is empty" in line


def test_many_broken_pictures_are_one_line_too(model_folder, pictures, tmp_path):
    folder = tmp_path / "mixed"
    shutil.copytree(pictures, folder)
    for index in range(9):
        (folder / f"empty{index}.png").touch()
    _, errors = call(folder, "--labels", "red,green", "--model", model_folder)
    (line,) = errors.splitlines()
    assert line.startswith("diffclip: skipped 9 of 12 images: ")
    assert "empty4.png" in line
    assert "empty5.png" not in line
    assert line.endswith("; and 4 more")


def test_a_picture_that_was_named_must_be_readable(model_folder, pictures, tmp_path):
    bad = [tmp_path / f"bad{index}.png" for index in range(3)]
    for file in bad:
        file.touch()
    arguments = ("--labels", "a,b", "--model", model_folder, "--json")
    with pytest.raises(InputError, match=r"bad0\.png is empty"):
        call(pictures, *bad, *arguments)
    with pytest.raises(InputError, match=r"bad2\.png is empty"):
        call(pictures, tmp_path, bad[2], *arguments)


def test_a_single_broken_picture_is_an_error(model_folder, tmp_path):
    (tmp_path / "note.jpg").write_text("not a picture")
    arguments = ("--labels", "a,b", "--model", model_folder)
    with pytest.raises(InputError, match=r"note\.jpg is not an image"):
        call(tmp_path / "note.jpg", *arguments)
    (tmp_path / "other.jpg").write_text("nor is this")
    with pytest.raises(InputError, match=r"note\.jpg.*none of the other 1"):
        call(tmp_path, *arguments)
    with pytest.raises(InputError, match=r"gone\.jpg does not exist"):
        call(tmp_path / "gone.jpg", *arguments)


def test_weights_without_a_number(save_model, pictures, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = save_model(tmp_path / "broken")
    state = load_file(folder / "model.safetensors")
    state["image_projection"].fill_(float("nan"))
    save_file(state, folder / "model.safetensors")
    with pytest.raises(InputError, match="not finite"):
        call(pictures, "--labels", "a,b", "--model", folder)


@pytest.mark.parametrize("labels", ["", " ", "cat,", "cat,,dog", ","])
def test_an_empty_label(labels):
    with pytest.raises(InputError, match="empty label"):
        parse_labels(labels)


@pytest.mark.parametrize("labels", ["cat,cat", "Cat , cat", "straße,STRASSE"])
def test_the_same_label_twice(labels):
    with pytest.raises(InputError, match="twice"):
        parse_labels(labels)


def test_labels_from_a_file(tmp_path):
    file = tmp_path / "labels.txt"
    file.write_text("cat, small\n\n  dog \n", encoding="utf-8")
    assert parse_labels(f"@{file}") == ["cat, small", "dog"]
    assert parse_labels(" cat ,dog") == ["cat", "dog"]
    file.write_text("\n")
    with pytest.raises(InputError, match="no label"):
        parse_labels(f"@{file}")
    with pytest.raises(InputError, match=r"gone\.txt"):
        parse_labels(f"@{tmp_path / 'gone.txt'}")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("gone.jpg", "--labels", "a,A", "--model", "gone"), "twice"),
        (("gone.jpg", "--labels", "a,b", "--model", "gone.pt"), "gone.pt does not exist"),
        (("gone.jpg", "--labels", "a,b", "--model", "x", "--template", "y"), "has no place"),
    ],
)
def test_arguments_and_names_are_checked_before_torch_is_imported(tmp_path, arguments, line):
    code = (
        "import sys; from diffclip.cli.main import main\n"
        "try: main()\nfinally: assert not {'torch', 'numpy', 'open_clip'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "classify", *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert line in done.stderr


def test_classify_does_not_import_what_it_does_not_need(model_folder, pictures):
    code = (
        "import sys; from diffclip.cli.main import main\n"
        "try: main()\n"
        "finally: print({'open_clip', 'transformers', 'lightning', 'matplotlib', 'pandas'} & set(sys.modules))"
    )
    words = ["classify", str(pictures / "red.png"), "--labels", "a,b", "--model", str(model_folder)]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"

import json
import shutil
from functools import partial

import in_process
import pytest
import torch

from diffclip.cli.classify import parse_labels
from diffclip.errors import InputError

call = partial(in_process.call, "classify")


def test_classify_prints_the_probabilities_of_the_model(model_folder, image_folder):
    import diffclip
    from diffclip.data.images import read_image

    labels = ["red", "green", "blue"]
    printed, _ = call(image_folder, "--labels", "red, green, blue", "--model", model_folder, "--json")
    results = [json.loads(line) for line in printed.splitlines()]
    assert [result["image"] for result in results] == [str(image_folder / f"{n}.png") for n in sorted(labels)]
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


def test_top_limits_the_labels_and_template_changes_the_results(model_folder, image_folder, monkeypatch):
    common = (image_folder, "--labels", "red,green,blue", "--model", model_folder, "--json")

    def probabilities(*more):
        return [json.loads(line)["probabilities"] for line in call(*common, *more)[0].splitlines()]

    whole = probabilities()
    monkeypatch.setattr("diffclip.cli.classify._BATCH", 1)
    assert probabilities() == [pytest.approx(row, abs=1e-6) for row in whole]
    assert [len(row) for row in probabilities("--top", 1)] == [1, 1, 1]
    custom = probabilities("--template", "a bad drawing of one {c}")
    assert any(row != pytest.approx(before, abs=1e-4) for row, before in zip(custom, whole, strict=True))


def test_table_shows_markup_in_names_literally(model_folder, image_folder, tmp_path):
    shutil.copy(image_folder / "red.png", tmp_path / "[bold]x.png")
    table, _ = call(tmp_path / "[bold]x.png", "--labels", "[red]a[/red],b", "--model", model_folder)
    assert "[red]a[/red]" in table
    assert "[bold]x.png" in table.replace("\n", "").replace(" ", "")
    assert "█" in table
    assert "%" in table


def test_broken_images_are_one_warning_in_a_folder_but_errors_by_name(model_folder, image_folder, tmp_path):
    folder = tmp_path / "mixed"
    shutil.copytree(image_folder, folder)
    (folder / "broken.jpg").write_bytes((folder / "red.png").read_bytes()[:60])
    for index in range(8):
        (folder / f"empty{index}.png").touch()
    arguments = ("--labels", "red,green", "--model", model_folder, "--json")
    printed, errors = call(folder, *arguments)
    assert printed.count("\n") == 3
    (line,) = errors.splitlines()
    assert line.startswith("diffclip: skipped 9 of 12 images: ")
    assert "broken.jpg: is cut short" in line
    assert "empty3.png: is empty" in line
    assert "empty4.png" not in line
    assert line.endswith("; and 4 more")
    with pytest.raises(InputError, match=r"empty7\.png is empty"):
        call(folder, folder / "empty7.png", *arguments)
    for name in ("red", "green", "blue"):
        (folder / f"{name}.png").write_text("not an image")
    with pytest.raises(InputError, match=r"blue\.png.*the other 11 cannot be read either"):
        call(folder, *arguments)


def test_labels_come_from_a_list_or_file_and_bad_ones_are_refused(tmp_path):
    file = tmp_path / "labels.txt"
    file.write_text("cat, small\n\n  dog \n", encoding="utf-8")
    assert parse_labels(f"@{file}") == ["cat, small", "dog"]
    assert parse_labels(" cat ,dog") == ["cat", "dog"]
    file.write_text("\n")
    refused = {f"@{file}": "no label", "@gone.txt": r"gone\.txt", "straße,STRASSE": "twice"}
    for labels, words in (refused | {"cat,,dog": "empty label", "": "empty label"}).items():
        with pytest.raises(InputError, match=words):
            parse_labels(labels)


def test_weights_with_nan_are_refused(save_model, image_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = save_model(tmp_path / "broken")
    state = load_file(folder / "model.safetensors")
    state["image_projection"].fill_(float("nan"))
    save_file(state, folder / "model.safetensors")
    with pytest.raises(InputError, match="not finite"):
        call(image_folder, "--labels", "a,b", "--model", folder)

"""`diffclip convert --transformers` and its way back."""

from __future__ import annotations

import json
from pathlib import Path

import in_process
import pytest
import torch

import diffclip
from diffclip import InputError
from diffclip.convert.sources import read_foreign


def call(*arguments: object) -> str:
    return in_process.call("convert", *arguments)[0]


def test_to_transformers_and_back(model_folder: Path, tmp_path: Path, capfd) -> None:
    from transformers import AutoModel, AutoTokenizer

    model, _, tokenizer = diffclip.load(model_folder)
    said = call(model_folder, tmp_path / "theirs", "--transformers")
    assert f"{tmp_path / 'theirs'}: DiffCLIP-v16x1x2p8-t16x1x2" in said
    loaded, ids = AutoModel.from_pretrained(tmp_path / "theirs"), tokenizer(["a cat"])
    theirs = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    made = theirs(["a cat"], padding="max_length", return_tensors="pt")
    assert torch.equal(made.input_ids, ids)
    torch.testing.assert_close(loaded.get_text_features(**made).pooler_output, model.encode_text(ids))
    capfd.readouterr()
    call(f"transformers:{tmp_path / 'theirs'}", tmp_path / "back")
    assert capfd.readouterr().err == ""
    again = diffclip.load(tmp_path / "back")[0]
    assert again.config == model.config
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    with pytest.raises(InputError, match="theirs is not empty: give a new folder"):
        call(model_folder, tmp_path / "theirs", "--transformers")


def test_nothing_is_replaced(model_folder: Path, tmp_path: Path) -> None:
    image = tmp_path / "photo.pt"
    image.write_bytes(b"JPEG")
    for target, told in ((image, r"photo\.pt exists: give another name"), (tmp_path, "is not empty")):
        with pytest.raises(InputError, match=told):
            call(model_folder, target)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"JPEG"]


def test_what_cannot_be_is_one_line(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the published layout cannot hold a model of --transformers"):
        call(model_folder, tmp_path / "model.pt", "--transformers")
    for kind, told in (
        ("diffclip_vision_model", "is a 'diffclip_vision_model', not a 'clip'"),
        ("diffclip", "diffclip cannot be read"),
    ):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(InputError, match=told):
            read_foreign(f"transformers:{tmp_path / kind}")
    with pytest.raises(InputError, match=r"its config\.json names no model_type"):
        call(f"transformers:{model_folder}", tmp_path / "back")

"""`diffclip convert` from files of other libraries, made here."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from in_process import diffclip_command
from test_conversions import IMAGES, open_clip_model, transformers_model

import diffclip
from diffclip import InputError
from diffclip.convert.sources import read_foreign


def convert(*arguments: object) -> subprocess.CompletedProcess[str]:
    return diffclip_command("convert", *arguments)


def test_a_folder_of_transformers_becomes_a_differential_model(tmp_path: Path) -> None:
    from transformers import CLIPImageProcessor

    model = transformers_model()
    model.save_pretrained(tmp_path / "theirs")
    size = IMAGES.shape[-1]
    CLIPImageProcessor(
        size={"shortest_edge": size + 2},
        crop_size={"height": size, "width": size},
        resample=2,
        image_mean=[0.1, 0.2, 0.3],
    ).save_pretrained(tmp_path / "theirs")
    done = convert(f"transformers:{tmp_path / 'theirs'}", tmp_path / "ours", "--to-differential")
    assert done.returncode == 0, done.stderr
    assert "DiffCLIP-added-v32x2x4p8-t24x2x3" in done.stdout
    assert done.stderr == ""
    ours, preprocess, _ = diffclip.load(tmp_path / "ours")
    prepared = preprocess.preprocess
    assert prepared.mean == (0.1, 0.2, 0.3)
    assert (prepared.resize, prepared.interpolation) == (size + 2, "bilinear")
    with torch.no_grad():
        theirs = model.get_image_features(IMAGES)
        torch.testing.assert_close(
            ours.encode_image(IMAGES), getattr(theirs, "pooler_output", theirs), rtol=1e-5, atol=1e-5
        )
    again = convert(tmp_path / "ours", tmp_path / "twice", "--to-differential")
    assert again.returncode == 2
    assert "differential-added attention already" in again.stderr
    refused = convert(tmp_path / "ours", tmp_path / "ours.pt")
    assert refused.returncode == 2
    assert "no published layout" in refused.stderr


def test_weights_of_open_clip_by_architecture_and_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import open_clip

    (tmp_path / "tiny.json").write_text(
        json.dumps(
            {
                "embed_dim": 16,
                "vision_cfg": {"layers": 2, "width": 32, "head_width": 8, "patch_size": 8, "image_size": 32},
                "text_cfg": {"context_length": 8, "vocab_size": 50, "width": 24, "heads": 3, "layers": 2},
            }
        )
    )
    open_clip.add_model_config(tmp_path / "tiny.json")
    model = open_clip_model()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    ours = read_foreign(f"open_clip:tiny:{tmp_path / 'weights.pt'}")
    with torch.no_grad():
        torch.testing.assert_close(
            ours.encode_image(IMAGES), model.encode_image(IMAGES), rtol=1e-5, atol=1e-5
        )
    (tmp_path / "half.pt").write_bytes((tmp_path / "weights.pt").read_bytes()[:5000])
    with pytest.raises(InputError, match=r"half\.pt cannot be read"):
        read_foreign(f"open_clip:tiny:{tmp_path / 'half.pt'}")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("open_clip:ViT-B-61:openai", "did you mean"),
        ("open_clip:ViT-B-16:nothing", "neither a file nor one of ViT-B-16's"),
        ("open_clip:ViT-B-16", "says no weights"),
        ("transformers:/no/such/folder", "cannot be read"),
    ],
)
def test_what_is_not_there_is_one_line(source: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        read_foreign(source)
    assert "\n" not in str(error.value)


def test_code_in_weights_is_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"state_dict": Trap()}, tmp_path / "trap.pt")
    with pytest.raises(InputError, match="cannot be read"):
        read_foreign(f"open_clip:ViT-B-32:{tmp_path / 'trap.pt'}")
    assert not (tmp_path / "ran").exists()

"""Weights: read and write every layout, and handle files that are damaged, foreign or hostile."""

import argparse
import json
import os
import pathlib
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny import SIZES

import diffclip
from diffclip import CLIP, InputError
from diffclip.config import (
    VARIANTS,
    PreprocessConfig,
    named_config,
    variant_config,
    variant_of,
)
from diffclip.published import infer_config, to_published
from diffclip.weights import save_published, save_weights

PUBLISHED = ["CLIP", "DiffCLIP", "DiffCLIP-dynamic", "DiffCLIP-vision"]


def tiny(variant: str = "DiffCLIP", seed: int = 0, **more: object) -> CLIP:
    return CLIP(variant_config(variant, SIZES | more), seed=seed)


def same(a: CLIP, b: CLIP) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def published_file(model: CLIP, file: Path) -> Path:
    """Write a checkpoint as the published training code does, with everything that it stores beside the weights."""
    state = to_published(model.state_dict(), model.config)
    optimizer = {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": np.float64(5e-4)}]}
    args = argparse.Namespace(output_dir=pathlib.PosixPath("/somewhere/run"), lr=5e-4, name="x")
    extras = {"epoch": 39, "optimizer": optimizer, "scaler": {"scale": 65536.0}, "args": args}
    extras |= {"best_acc1": np.float32(31.8), "count": np.int64(7)}
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in state.items()}, **extras}, file)
    return file


def renamed_pickle(file: Path, old: bytes, new: bytes) -> None:
    """Replace `old` by `new` in the archive's pickle, as if another NumPy had written it."""
    with zipfile.ZipFile(file) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, body in members.items():
            archive.writestr(name, body.replace(old, new) if name.endswith("data.pkl") else body)


def test_numpy_scalars_are_read_under_old_and_new_module_names(tmp_path: Path) -> None:
    model = tiny()
    file = published_file(model, tmp_path / "checkpoint.pt")
    with zipfile.ZipFile(file) as archive:
        body = next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))
    new, old = b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"
    present, other = (new, old) if new in body else (old, new)
    assert present in body
    assert same(diffclip.load_weights(tiny(seed=2), file), model)
    renamed_pickle(file, present, other)
    assert same(diffclip.load_weights(tiny(seed=2), file), model)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch ran-code",)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_that_tries_to_run_code_is_refused_without_running_it(legacy, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    contents = {"state_dict": {"module.x": torch.zeros(1)}, "args": Evil()}
    torch.save(contents, tmp_path / "evil.pt", _use_new_zipfile_serialization=not legacy)
    reason = "holds more than tensors" if legacy else r"wants to run (posix|nt|os)\.system"
    with pytest.raises(InputError, match=reason) as error:
        diffclip.load_weights(tiny(), tmp_path / "evil.pt")
    assert "\n" not in str(error.value)
    (tmp_path / "plain.pt").write_bytes(pickle.dumps({"a": Evil()}))
    with pytest.raises(InputError):
        diffclip.load_weights(tiny(), tmp_path / "plain.pt")
    assert not (tmp_path / "ran-code").exists()


def test_a_saved_folder_keeps_weights_config_and_preprocessing(tmp_path: Path) -> None:
    preprocess = PreprocessConfig(mean=(0.1, 0.2, 0.3), std=(1, 1, 1), interpolation="bicubic", resize=40)
    model = tiny("DiffCLIP-dynamic", preprocess=preprocess.model_dump())
    diffclip.save_weights(torch.compile(model), tmp_path / "saved")  # without the wrapper
    assert {file.name for file in (tmp_path / "saved").iterdir()} == {"config.json", "model.safetensors"}
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["preprocess"] == {**preprocess.model_dump(), "mean": [0.1, 0.2, 0.3], "std": [1, 1, 1]}
    assert config["tokenizer"] == "openclip"
    loaded, transform, _ = diffclip.load(tmp_path / "saved")
    assert same(loaded, model)
    assert loaded.config == model.config
    assert not loaded.training
    assert transform.resize == 40
    compiled = torch.compile(tiny("DiffCLIP-dynamic"))
    assert diffclip.load_weights(compiled, tmp_path / "saved").config == model.config
    assert loaded.attention_layers()["visual"][0].lambda_init == pytest.approx(0.2)
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "saved" / "model.safetensors").stat().st_mode & 0o777 == 0o666 & ~mask


def test_safetensors_are_read_in_either_layout(tmp_path: Path) -> None:
    model = tiny()
    save_file(model.state_dict(), tmp_path / "ours.safetensors")
    state = {name: t.contiguous() for name, t in to_published(model.state_dict(), model.config).items()}
    save_file(state, tmp_path / "published.safetensors")
    for name, eps in (("ours", 1e-6), ("published", 1e-5)):
        loaded = diffclip.load_weights(tiny(seed=3), tmp_path / f"{name}.safetensors")
        assert same(loaded, model)
        assert loaded.config.vision.norm_eps == eps


def test_a_bare_published_file_determines_its_model(tmp_path: Path) -> None:
    config = named_config("DiffCLIP-vision-ViT-Ti-16")
    model = CLIP(config, init="published", seed=0)
    (tmp_path / "hub").mkdir()
    published_file(model, tmp_path / "hub" / "checkpoint_best.pt")
    loaded, preprocess, tokenizer = diffclip.load(tmp_path / "hub")
    assert same(loaded, model)
    assert loaded.config == model.config
    assert (preprocess.image_size, preprocess.resize) == (224, 224)
    assert preprocess.preprocess.mean == (0.485, 0.456, 0.406)
    assert tokenizer("a cat").shape == (1, 77)


def test_load_takes_a_name_and_an_image_size(tmp_path: Path) -> None:
    name, file = "DiffCLIP-dynamic-ViT-Ti-16", tmp_path / "c.pt"
    published_file(CLIP(named_config(name, 64), seed=0), file)
    assert diffclip.load(file)[0].config.lambda_init == 0.8
    assert diffclip.load(file, model=name)[1].image_size == 64
    loaded, preprocess, _ = diffclip.load(file, model=name, image_size=48)
    assert loaded.config.lambda_init == "dynamic"
    assert loaded.visual.pos_embed.shape[1] == 10
    assert preprocess.image_size == 48
    diffclip.save_weights(tiny("CLIP"), tmp_path / "saved")
    with pytest.raises(InputError, match="not DiffCLIP-ViT-B-16"):
        diffclip.load(tmp_path / "saved", model="DiffCLIP-ViT-B-16")


def test_weights_that_do_not_determine_their_model_are_refused() -> None:
    with pytest.raises(InputError, match="the heads of a plain vision tower"):
        infer_config(tiny("CLIP").state_dict())
    converted = tiny("DiffCLIP-added", vision=SIZES["vision"] | {"pre_norm": True, "patch_bias": False})
    with pytest.raises(InputError, match="the activation of a converted model"):
        infer_config(converted.state_dict())
    with pytest.raises(
        InputError, match="no published layout because of its attention, pre_norm, patch_bias: save"
    ):
        to_published(converted.state_dict(), converted.config)
    for variant in ("DiffCLIP", "DiffCLIP-v2", "DiffCLIP-added"):
        assert infer_config(tiny(variant).state_dict()) == variant_config(variant, SIZES)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_saved_model_loads_from_its_folder_its_file_or_a_moved_file(variant: str, tmp_path: Path) -> None:
    model = tiny(variant, preprocess={"mean": [0.5, 0.5, 0.5]})
    assert variant_of(model.config) == variant
    diffclip.save_weights(model, tmp_path / "saved")
    file = tmp_path / "saved" / "model.safetensors"
    sources = [tmp_path / "saved", file, shutil.copy(file, tmp_path / "moved.safetensors")]
    if variant in PUBLISHED:  # our own published file keeps settings that weights do not show
        theirs = published_file(model, tmp_path / "theirs.pt")
        assert same(diffclip.load_weights(tiny(variant, seed=9), theirs), model)
        save_published(torch.compile(model), tmp_path / "ours.pt")
        sources.append(tmp_path / "ours.pt")
    for source in sources:
        loaded, _, _ = diffclip.load(source)
        assert loaded.config == model.config
        assert same(loaded, model)


@pytest.mark.parametrize(
    ("saved", "into", "vision", "words"),
    [
        ("CLIP", "CLIP", {"heads": 8}, "vision heads 4 for 8"),
        ("CLIP", "CLIP", {"activation": "quick_gelu"}, "vision activation gelu for quick_gelu"),
        ("DiffCLIP", "DiffCLIP-dynamic", {}, r"lambda_init 0\.8 for dynamic"),
        ("CLIP", "CLIP-half-heads", {}, "vision attention softmax for half-heads"),
        ("DiffCLIP-no-norm", "DiffCLIP-bare", {}, "factor True for False"),
        ("DiffCLIP-no-norm", "DiffCLIP", {}, "missing .*diff_norm"),
        ("DiffCLIP", "DiffCLIP", {"image_size": 64}, r"pos_embed \[1, 17, 32\] for \[1, 65, 32\].* at 32 px"),
    ],
)
def test_weights_of_another_model_are_refused(saved, into, vision, words, tmp_path) -> None:
    diffclip.save_weights(tiny(saved), tmp_path / "saved")
    model, untouched = (tiny(into, seed=4, vision=SIZES["vision"] | vision) for _ in range(2))
    with pytest.raises(InputError, match=words):
        diffclip.load_weights(model, tmp_path / "saved")
    assert same(model, untouched)


def test_a_foreign_config_beside_a_published_file_is_not_read(tmp_path: Path) -> None:
    published_file(tiny(), tmp_path / "checkpoint_best.pt")
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    assert same(diffclip.load(tmp_path)[0], tiny())


@pytest.mark.parametrize(
    "odd",
    [
        {3: torch.zeros(1)},
        {"x": torch.zeros(2, 2).to_sparse()},
        {"x": torch.zeros(2, dtype=torch.complex64)},
        {"x": torch.zeros(2, device="meta")},
        {f"visual.blocks.0.attn.{part}_proj.weight": torch.tensor(0.0) for part in "qkv"},
        {f"visual.blocks.0.attn.{part}_proj.weight": torch.zeros(2, ord(part)) for part in "qkv"},
        {"visual.blocks.0.attn.lambda_q1": torch.zeros(0)},
    ],
)
def test_odd_contents_are_refused_in_one_line(odd: dict, tmp_path: Path) -> None:
    state = to_published(tiny().state_dict(), tiny().config) | odd
    torch.save({"state_dict": state}, tmp_path / "odd.pt")
    for use in (diffclip.load, lambda file: diffclip.load_weights(tiny(), file)):
        with pytest.raises(InputError) as error:
            use(tmp_path / "odd.pt")
        assert "\n" not in str(error.value)
        assert "by zero" not in str(error.value)


@pytest.mark.parametrize("legacy", [False, True])
def test_damaged_files_raise_input_error_only(legacy: bool, tmp_path: Path) -> None:
    contents = {"a": torch.zeros(3), "b": [1, 2]}
    torch.save(contents, tmp_path / "f.pt", _use_new_zipfile_serialization=not legacy)
    whole = (tmp_path / "f.pt").read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(40):
        for damaged in (bytearray(whole[: rng.integers(1, len(whole))]), bytearray(whole)):
            for position in (*rng.integers(0, len(damaged), 3), max(0, len(damaged) - 8)):
                damaged[position] = rng.integers(
                    256
                )  # the last of these is in the place of a zip's directory
            (tmp_path / "g.pt").write_bytes(bytes(damaged))
            with pytest.raises(InputError):
                diffclip.load(tmp_path / "g.pt")


def test_a_mismatch_lists_what_differs_and_names_the_model_that_fits(tmp_path: Path) -> None:
    file = published_file(diffclip.create_model("CLIP-ViT-Ti-16"), tmp_path / "clip.pt")
    with pytest.raises(InputError) as error:
        diffclip.load_weights(diffclip.create_model("DiffCLIP-ViT-Ti-16"), file)
    message = str(error.value)
    assert re.search(r"120 missing \(transformer\.resblocks\.0\.attn\.diff_norm\.weight, .*…\)", message)
    assert "they fit CLIP-ViT-Ti-16 at 224 px" in message
    assert "\n" not in message

    other = tiny("DiffCLIP", embed_dim=24)
    save_file(other.state_dict() | {"head.weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError) as error:
        diffclip.load_weights(tiny("DiffCLIP"), tmp_path / "other.safetensors")
    assert "1 extra (head.weight)" in str(error.value)
    assert "image_projection [32, 24] for [32, 16]" in str(error.value)


def cut(file: Path, share: float) -> Path:
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
    return file


def scripted(file: Path) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("jit/code/__torch__.py", "")
    return file


def inside_itself(file: Path) -> Path:
    contents: dict[str, object] = {"w": torch.zeros(2)}
    contents["me"] = contents
    torch.save(contents, file)
    return file


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda d: d / "absent.pt", "does not exist"),
        (lambda d: (d / "empty.pt").touch() or d / "empty.pt", "is empty"),
        (lambda d: (d / "folder").mkdir() or d / "folder", "neither model.safetensors nor checkpoint_best"),
        (
            lambda d: save_file({"a": torch.zeros(2)}, d / "a.safetensors") or d,
            "give a.safetensors, or open_clip:local-dir:",
        ),
        (lambda d: scripted(d / "jit.pt"), "is a TorchScript archive, which holds code"),
        (lambda d: cut(published_file(tiny(), d / "cut.pt"), 0.6), "cut.pt"),
        (lambda d: (d / "a.safetensors").write_text("none") and d / "a.safetensors", "safetensors"),
        (
            lambda d: cut(published_file(tiny(), d / "cut.pt"), 0.1),
            "cut.pt is not a file of torch.save, is damaged",
        ),
        (lambda d: (d / "text.pt").write_text("hello world\n") and d / "text.pt", "not a file of torch.save"),
        (lambda d: torch.save([1, 2], d / "list.pt") or d / "list.pt", "no state_dict"),
        (lambda d: torch.save({"a": 1}, d / "dict.pt") or d / "dict.pt", "no state_dict, its keys are a"),
        (
            lambda d: torch.save({"a": torch.zeros(2), "b": 1}, d / "one.pt") or d / "one.pt",
            "'b' is not a named tensor",
        ),
        (lambda d: inside_itself(d / "self.pt"), "is nested too deeply"),
    ],
)
def test_unusable_files_are_named_in_one_line(make, words: str, tmp_path: Path) -> None:
    file = make(tmp_path)
    for use in (diffclip.load, lambda path: diffclip.load_weights(tiny(), path)):
        with pytest.raises(InputError) as error:
            use(file)
        assert words in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "not a model's configuration"),
        ("[" * 200_000, "the configuration in .* is not JSON"),
        ('{"embed_dim": "wide"}', "embed_dim"),
        ('{"embed_dim": 8, "vision": {"layers": 1000000000}}', "layers"),
        ('{"text": {"context_length": 1000000000000}}', "holds weights for another model"),
        ('{"preprocess": {"std": [0, 1, 1]}}', "std.0: 0 is not above 0"),
    ],
)
def test_a_damaged_config_is_named(text: str, words: str, tmp_path: Path) -> None:
    diffclip.save_weights(tiny(), tmp_path / "saved")
    (tmp_path / "saved" / "config.json").write_text(text)
    with pytest.raises(InputError, match=words):
        diffclip.load(tmp_path / "saved")
    save_file(tiny().state_dict(), tmp_path / "a.safetensors", metadata={"diffclip_config": "{"})
    with pytest.raises(InputError, match=r"a\.safetensors is not JSON"):
        diffclip.load(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda name: f"_orig_mod.{name}",
        lambda name: f"module._orig_mod.model.{name}",
        lambda name: f"model.module.{name}",
        lambda name: f"_fsdp_wrapped_module.{name.replace('blocks.0.', 'blocks.0._orig_mod.')}",
        lambda name: f"clip.{name}",
    ],
)
def test_prefixes_of_wrappers_are_taken_off(wrap: Callable[[str], str], tmp_path: Path) -> None:
    model = tiny(seed=3)
    state = {wrap(name): tensor for name, tensor in model.state_dict().items()}
    torch.save({"epoch": 3, "loss": torch.tensor(1.0), "model": state}, tmp_path / "wrapped.pt")
    assert same(diffclip.load(tmp_path / "wrapped.pt")[0], model)
    save_file(state, tmp_path / "wrapped.safetensors")
    assert same(diffclip.load(tmp_path / "wrapped.safetensors")[0], model)


def test_averaged_weights_are_taken_and_named(tmp_path: Path) -> None:
    plain, averaged = tiny(seed=1), tiny(seed=2)
    states = {"state_dict": plain.state_dict(), "state_dict_ema": averaged.state_dict(), "epoch": 1}
    torch.save(states, tmp_path / "both.pt")
    with pytest.warns(UserWarning, match="weights state_dict_ema are taken, not state_dict"):
        assert same(diffclip.load(tmp_path / "both.pt")[0], averaged)
    # the averages of Adam are no weights
    moments = {"model": plain.state_dict(), "optimizer": {"exp_avg": averaged.state_dict()}}
    torch.save(moments, tmp_path / "adam.pt")
    with pytest.warns(UserWarning, match=r"weights model are taken, not optimizer\.exp_avg"):
        assert same(diffclip.load(tmp_path / "adam.pt")[0], plain)
    torch.save({"state": {"model_ema": averaged.state_dict()}}, tmp_path / "ema.pt")
    assert same(diffclip.load(tmp_path / "ema.pt")[0], averaged)
    parts = {
        "acc.total": torch.zeros(()),
        **{f"model.{name}": value for name, value in plain.state_dict().items()},
    }
    torch.save({"state_dict": parts}, tmp_path / "lightning.ckpt")
    with pytest.warns(UserWarning, match=r"with names after 'model\.' are taken, not acc\.total"):
        assert same(diffclip.load(tmp_path / "lightning.ckpt")[0], plain)
    both = parts | {f"ema_model.{name}": value for name, value in averaged.state_dict().items()}
    torch.save(both, tmp_path / "one.pt")
    with pytest.warns(UserWarning, match=r"with names after 'ema_model\.' are taken"):
        assert same(diffclip.load(tmp_path / "one.pt")[0], averaged)
    swa = torch.optim.swa_utils.AveragedModel(averaged).state_dict()
    torch.save(swa, tmp_path / "swa.pt")
    assert same(diffclip.load(tmp_path / "swa.pt")[0], averaged)


def test_a_file_without_our_weights_is_told_with_the_keys_that_are_there(tmp_path: Path) -> None:
    state = tiny().state_dict()
    cases = {
        "it holds no state_dict, its keys are epoch, args": {"epoch": 3, "args": "x"},
        "has conv1.weight, fc.weight: these are not the weights": {
            "conv1.weight": torch.zeros(2),
            "fc.weight": torch.zeros(2),
        },
        "several models, with names after '', 'module.'": state
        | {f"module.{name}": state[name] for name in state},
        "quantized or integer .*logit_scale int8": {
            name: value.to(torch.int8) for name, value in state.items()
        },
        "holds no state_dict, it is a list": [1],
        "its keys are student, teacher": {"student": state, "teacher": state},
    }
    for message, contents in cases.items():
        torch.save(contents, tmp_path / "odd.pt")
        with pytest.raises(InputError, match=message.removeprefix("it ")):
            diffclip.load(tmp_path / "odd.pt")


@pytest.mark.parametrize("length", [4, 13])
def test_text_positions_are_resized_on_request(length: int, tmp_path: Path) -> None:
    model = tiny(seed=1)
    save_weights(model, tmp_path)
    loaded, _, tokenizer = diffclip.load(tmp_path, context_length=length)
    assert loaded.config.text.context_length == tokenizer.context_length == length
    positions, before = loaded.positional_embedding, model.positional_embedding
    assert torch.equal(positions[0], before[0])
    assert torch.equal(positions[-1], before[min(length, len(before)) - 1])
    assert loaded.encode_text(torch.ones(1, length, dtype=torch.long)).isfinite().all()
    with pytest.raises(InputError, match="texts of 1 tokens"):
        diffclip.load(tmp_path, context_length=1)

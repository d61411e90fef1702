"""DiffCLIP under transformers: the core's numbers, and features that transformers' common tests expect of any model."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_core import END, core, near
from torch import Tensor
from torch.nn.utils import parametrize
from transformers import AutoConfig, AutoModel

import diffclip
from diffclip import CLIP, InputError
from diffclip.integrations.transformers import (
    DiffCLIPConfig,
    DiffCLIPModel,
    DiffCLIPTextModel,
    DiffCLIPVisionModel,
    from_diffclip,
    load_transformers,
    save_transformers,
    to_diffclip,
    vision_from_diffclip,
)
from diffclip.maps.recording import recording

PIXELS = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([[1, 5, 6, END, 0, 0], [1, 7, END, 0, 0, 0], [1, 8, 9, 10, 11, END]])
PADDING = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
OPENAI = {"pre_norm": True, "patch_bias": False, "activation": "quick_gelu", "norm_eps": 1e-5}
VARIANTS: dict[str, dict[str, Any]] = {
    "CLIP": {"vision": "softmax", "text": "softmax"},
    "DiffCLIP": {},
    "dynamic": {"lambda_init": "dynamic"},
    "vision": {"text": "softmax"},
    "v2": {"vision": "differential-v2", "text": "differential-v2"},
    "added": {"vision": "differential-added", "text": "differential-added", "lambda_init": 0.0},
    "openai": {"vision": "softmax", "text": "softmax", "tower": OPENAI},
    "sigmoid": {"logit_bias": True},
    "rivals": {"vision": "gated", "text": "gated-open", "tower": {"registers": 2}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_numbers_are_the_cores_and_survive_saving_and_conversion(variant: str, tmp_path: Path) -> None:
    model = core(**VARIANTS[variant])
    theirs = from_diffclip(model)
    with torch.no_grad():
        out = theirs(input_ids=IDS, pixel_values=PIXELS, attention_mask=PADDING)
        core_out = model(PIXELS, IDS)
    near(out.image_embeds, core_out["image_features"])
    near(out.text_embeds, core_out["text_features"])
    logits = core_out["logit_scale"] * core_out["image_features"] @ core_out["text_features"].T
    near(out.logits_per_image, logits + core_out.get("logit_bias", 0))
    near(out.logits_per_text, out.logits_per_image.T)
    save_transformers(model, tmp_path / "model")
    assert isinstance(AutoConfig.from_pretrained(tmp_path / "model"), DiffCLIPConfig)
    loaded, faults = AutoModel.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert isinstance(loaded, DiffCLIPModel)
    assert not loaded.training
    assert not any(faults.values())
    near(loaded(IDS, PIXELS).to_tuple(), theirs(IDS, PIXELS).to_tuple(), 0)
    for back in (to_diffclip(theirs, model.config.preprocess), load_transformers(tmp_path / "model", "it")):
        assert back.config == theirs.config.core() == model.config
        for name, value in model.state_dict().items():
            assert torch.equal(back.state_dict()[name], value), name


@pytest.mark.parametrize("variant", ["DiffCLIP", "rivals"])
def test_hidden_states_and_attentions(variant: str) -> None:
    model = core(**VARIANTS[variant])
    theirs = from_diffclip(model)
    with torch.no_grad():
        out = theirs(input_ids=IDS, pixel_values=PIXELS, output_hidden_states=True, output_attentions=True)
        near(out.image_embeds, model.encode_image(PIXELS, normalize=True))
        with recording(model, "visual") as images:
            model.visual(PIXELS)
        with recording(model, "text") as texts:
            model.encode_text(IDS)
    heads = 2 if variant == "DiffCLIP" else 4
    for tower, maps, tokens, width, count in (
        (out.vision_model_output, images, 4 + model.visual.num_prefix_tokens, 32, heads),
        (out.text_model_output, texts, 6, 16, heads // 2),
    ):
        assert [state.shape for state in tower.hidden_states] == [(3, tokens, width)] * 3
        assert [attention.shape for attention in tower.attentions] == [(3, count, tokens, tokens)] * 2
        for attention, record in zip(tower.attentions, maps, strict=True):
            near(attention, record.combined)
    vision = out.vision_model_output
    assert vision.hidden_states[-1] is vision.last_hidden_state
    near(vision.hidden_states[1], model.visual.blocks[0](vision.hidden_states[0]))
    near(model.visual.norm(vision.last_hidden_state)[:, 0] @ model.image_projection, vision.pooler_output)
    tower = theirs.vision_model
    for chosen, absent in ((-2, [True, False, True]), ([0, -1], [False, True, False])):
        states = tower(PIXELS, output_hidden_states=chosen).hidden_states
        assert [state is None for state in states] == absent
    assert tower(PIXELS).hidden_states is tower(PIXELS).attentions is None


def test_the_loss_matches_its_formula_on_the_logits() -> None:
    softmax, sigmoid = from_diffclip(core()), from_diffclip(core(logit_bias=True))
    out = softmax(IDS, PIXELS, return_loss=True)
    targets, cross_entropy = torch.arange(3), torch.nn.functional.cross_entropy
    losses = [cross_entropy(logits, targets) for logits in (out.logits_per_image, out.logits_per_text)]
    near(out.loss, sum(losses) / 2)
    out = sigmoid(IDS, PIXELS, return_loss=True)
    signs = 2 * torch.eye(3) - 1
    near(out.loss, -torch.nn.functional.logsigmoid(signs * out.logits_per_image).sum() / 3)
    out.loss.backward()
    assert sigmoid.logit_bias.grad is not None


def test_gradients_reach_all_weights_and_match_with_checkpointing() -> None:
    gradients = []
    for checkpointing in (False, True):
        theirs = from_diffclip(core()).train()
        if checkpointing:
            with warnings.catch_warnings():  # about its new name
                warnings.simplefilter("ignore", FutureWarning)
                sparse = hasattr(theirs, "activation_checkpointing_enable")  # not in transformers 5.4
                theirs.gradient_checkpointing_enable(**({"every_n_layers": 2} if sparse else {}))
            layers = [*theirs.vision_model.visual.blocks, *theirs.text_model.transformer.resblocks]
            assert [layer.gradient_checkpointing for layer in layers] == [True, not sparse] * 2
        theirs(IDS, PIXELS, return_loss=True).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in theirs.named_parameters()})
    assert all(gradient is not None for gradient in gradients[0].values())
    near(gradients[1], gradients[0], 1e-6)


def test_attn_implementation_selects_the_attention_backend() -> None:
    model = core()
    tower = DiffCLIPVisionModel._from_config(vision_from_diffclip(model).config, attn_implementation="eager")
    tower.load_state_dict(vision_from_diffclip(model).state_dict())
    for implementation, backend in (("eager", "eager"), ("sdpa", "auto")):
        tower.set_attn_implementation(implementation)
        near(tower(PIXELS).pooler_output, model.visual(PIXELS))
        assert {block.attn.backend for block in tower.visual.blocks} == {backend}


def test_the_configuration_accepts_the_field_names_of_clip_and_checks_sizes() -> None:
    tower = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    towers = {"vision_config": tower, "text_config": tower | {"vocab_size": 99}}
    config = DiffCLIPConfig(**towers, projection_dim=24)
    assert config.vision_config.projection_dim == config.text_config.projection_dim == 24
    assert config.core().vision.mlp_ratio == config.core().text.mlp_ratio == 1.5
    starts = {"vision_config": 0.8, "text_config": 0.2}
    apart = {tower: {"attention": "differential", "lambda_init": start} for tower, start in starts.items()}
    uneven = {"vision_config": {"hidden_size": 30, "num_attention_heads": 4}}
    for changes, message in ((uneven, "not a multiple of heads"), (apart, "give one value")):
        with pytest.raises(ValueError, match=message), torch.device("meta"):
            DiffCLIPModel(DiffCLIPConfig(**changes))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "give pixel_values, input_ids or both"),
        ({"pixel_values": PIXELS[..., :8]}, r"takes \[B, 3, 16, 16\]"),
        ({"input_ids": torch.cat([IDS, IDS], dim=1)}, "truncation=True"),
        ({"input_ids": IDS.flip(1), "attention_mask": PADDING.flip(1)}, "pad on the right"),
        ({"input_ids": IDS, "return_loss": True}, "return_loss needs"),
        ({"input_ids": IDS[:1], "pixel_values": PIXELS, "return_loss": True}, "of the same length"),
    ],
)
def test_what_does_not_fit_the_model_is_an_input_error(inputs: dict[str, Any], message: str) -> None:
    theirs = from_diffclip(core())
    with pytest.raises(ValueError, match=message):
        theirs(**inputs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model whose vocabulary is too small for a tokenizer."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    save_transformers(core(), folder)
    text = json.loads((folder / "config.json").read_text())["text_config"]
    assert (text["bos_token_id"], text["eos_token_id"]) == (None, None)
    return folder


@pytest.mark.parametrize(("kind", "inputs"), [(DiffCLIPVisionModel, PIXELS), (DiffCLIPTextModel, IDS)])
def test_towers_load_from_the_whole_model_and_from_their_own_folder(
    folder: Path, tmp_path: Path, kind: Any, inputs: Tensor
) -> None:
    whole = from_diffclip(core())
    expected = (whole.vision_model if kind is DiffCLIPVisionModel else whole.text_model)(inputs)
    for source in (folder, tmp_path):
        tower, faults = kind.from_pretrained(source, output_loading_info=True)
        assert not any(faults.values())
        near(tower(inputs).pooler_output, expected.pooler_output)
        tower.save_pretrained(tmp_path)


def changed(folder: Path, target: Path, change: Any) -> Path:
    """Copy `folder` and apply `change` to the tensors of the copy."""
    shutil.copytree(folder, target)
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_a_folder_without_a_processor_keeps_the_preprocessing(tmp_path: Path) -> None:
    model = core(preprocess={"mean": (0.1, 0.2, 0.3), "interpolation": "bicubic", "resize": "squash"})
    from_diffclip(model).save_pretrained(tmp_path)  # as the Trainer does
    assert load_transformers(tmp_path, "the model").config == model.config
    with pytest.raises(InputError, match="was saved by transformers: give transformers:"):
        diffclip.load(tmp_path)


def test_missing_and_unexpected_weights_are_reported(folder: Path, tmp_path: Path) -> None:
    block = "text_model.transformer.resblocks.0.attn.qkv.bias"
    removed = {"vision_model.visual.pos_embed", "visual_projection.weight", "logit_scale", block}
    lacking = changed(folder, tmp_path / "lacking", lambda tensors: [tensors.pop(name) for name in removed])
    torch.manual_seed(0)
    loaded, faults = DiffCLIPModel.from_pretrained(lacking, output_loading_info=True)
    assert set(faults["missing_keys"]) == removed
    whole, state = load_file(folder / "model.safetensors"), loaded.state_dict()
    assert all(torch.equal(state[name], whole[name]) for name in whole.keys() - removed)
    near(state["logit_scale"].exp(), torch.tensor(1 / 0.07))
    near(state["visual_projection.weight"].std(), torch.tensor(32**-0.5), 0.03)
    with pytest.raises(InputError, match=r"4 missing \(image_projection, logit_scale"):
        load_transformers(lacking, "lacking")
    more = changed(folder, tmp_path / "more", lambda tensors: tensors.update(more=torch.ones(3)))
    with pytest.raises(InputError, match=r"1 extra \(more\)"):
        load_transformers(more, "more")


def test_half_precision_spares_lambda(folder: Path, tmp_path: Path) -> None:
    layer = from_diffclip(core()).vision_model.visual.blocks[0].attn
    parametrize.register_parametrization(layer, "lambda_q1", torch.nn.Identity())
    assert layer.to(torch.bfloat16).parametrizations.lambda_q1.original.dtype == torch.float32
    loaded = DiffCLIPModel.from_pretrained(folder, dtype=torch.bfloat16)
    for name, parameter in loaded.named_parameters():
        assert parameter.dtype == (torch.float32 if ".lambda_" in name else torch.bfloat16), name
    out = loaded(IDS, PIXELS, output_attentions=True)
    assert (
        loaded.dtype
        == out.image_embeds.dtype
        == out.vision_model_output.attentions[0].dtype
        == torch.bfloat16
    )
    near(out.image_embeds.float(), core().encode_image(PIXELS, normalize=True), 0.05)
    # loading in bfloat16 keeps λ exact
    exact = load_file(folder / "model.safetensors")
    name = "vision_model.visual.blocks.0.attn.lambda_q1"
    assert torch.equal(loaded.state_dict()[name], exact[name])
    loaded.save_pretrained(tmp_path / "half")
    again = AutoModel.from_pretrained(tmp_path / "half", dtype="auto")
    assert again.dtype == torch.bfloat16
    near(again(IDS, PIXELS).to_tuple(), loaded(IDS, PIXELS).to_tuple(), 0)


@pytest.mark.parametrize("variant", ["DiffCLIP", "added", "sigmoid"])
def test_new_models_are_initialized_like_the_core(variant: str) -> None:
    options = VARIANTS[variant]
    config = from_diffclip(core(vocabulary=200, **options)).config
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        models.append(to_diffclip(DiffCLIPModel(config)))
    first, second = (model.state_dict() for model in models)
    for name, value in CLIP(config.core(), seed=5).state_dict().items():
        assert torch.equal(first[name], second[name]), name
        if value.numel() > 500:
            near(first[name].std(), value.std(), 0.15 * float(value.std()))
        elif value.ndim == 0 or float(value.std()) == 0:
            near(first[name], value)
    if variant == "added":
        assert all(float(lam) == 0 for lams in models[0].lambdas().values() for lam in lams)

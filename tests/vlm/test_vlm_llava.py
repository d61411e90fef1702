"""The connected model: its text is the language model's, its images the tower's, and it loads as it was saved."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_vlm import PATCHES, SPECIAL, make_language_model, make_tokenizer, make_vision
from transformers import AutoModelForImageTextToText, AutoProcessor

from diffclip.errors import InputError
from diffclip.vlm.llava import CONNECTORS, connect, connector_of

SMALL = {"vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
PIXELS = torch.linspace(-2, 2, 3 * 16 * 16).reshape(1, 3, 16, 16)


def words(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.tensor([[9, 40, 41, 7, 100]])).logits


@pytest.fixture(scope="module", params=CONNECTORS)
def connected(
    request: pytest.FixtureRequest,
    tiny_vision: Any,
    tiny_language_model: Any,
    tiny_tokenizer: Any,
    tiny_image_processor: Any,
) -> tuple[str, Any, Any]:
    model, processor = connect(
        tiny_vision, tiny_language_model, tiny_tokenizer, tiny_image_processor, request.param
    )
    return request.param, model, processor


def test_text_alone_is_the_language_models(connected: tuple[str, Any, Any], tiny_language_model: Any) -> None:
    name, model, _ = connected
    assert connector_of(model.config) == name
    assert torch.equal(words(model), words(tiny_language_model))
    assert model.lm_head.weight is model.get_input_embeddings().weight
    own = {id(parameter) for parameter in tiny_language_model.parameters()}
    assert not own & {id(parameter) for parameter in model.parameters()}


def test_features_are_those_before_the_last_layer_without_the_class_token(
    connected: tuple[str, Any, Any], tiny_vision: Any
) -> None:
    _, model, _ = connected
    with torch.no_grad():
        features = model.get_image_features(pixel_values=PIXELS).pooler_output[0]
        seen = tiny_vision(PIXELS, output_hidden_states=True).hidden_states[-2][:, 1:]
        expected = model.model.multi_modal_projector(seen)[0]
    assert features.shape == (PATCHES, 32)
    assert torch.equal(features, expected)


def test_the_auto_classes_load_what_was_saved(connected: tuple[str, Any, Any], tmp_path: Path) -> None:
    _, model, processor = connected
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert loaded.generation_config.eos_token_id == model.generation_config.eos_token_id
    again = AutoProcessor.from_pretrained(tmp_path)
    assert type(again) is type(processor)
    assert (again.image_token, again.chat_template) == (processor.image_token, processor.chat_template)


def test_the_seed_decides_the_connectors_start(
    tiny_vision: Any, tiny_language_model: Any, tiny_tokenizer: Any, tiny_image_processor: Any
) -> None:
    parts = (tiny_vision, tiny_language_model, tiny_tokenizer, tiny_image_processor)
    state = torch.random.get_rng_state()
    first, again, other = (
        connect(*parts, seed=seed)[0].model.multi_modal_projector.weight for seed in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("Llama", {"intermediate_size": 64}),
        ("GPTNeoX", {"intermediate_size": 64}),
        ("GPT2", {"vocab_size": 320, "n_embd": 32, "n_layer": 2, "n_head": 2}),
    ],
)
def test_any_causal_language_model(
    kind: str, fields: dict[str, Any], tiny_vision: Any, tiny_tokenizer: Any, tiny_image_processor: Any
) -> None:
    config = getattr(transformers, f"{kind}Config")(**(fields if kind == "GPT2" else SMALL | fields))
    causal = {"GPT2": "GPT2LMHeadModel"}.get(kind, f"{kind}ForCausalLM")
    language = getattr(transformers, causal)(config).eval()
    model, _ = connect(tiny_vision, language, tiny_tokenizer, tiny_image_processor)
    assert torch.equal(words(model), words(language))


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (
            "PhiForCausalLM",
            {"intermediate_size": 64},
            "does more to its words",
        ),  # a bias after its last layer
        (
            "Gemma2ForCausalLM",
            {"intermediate_size": 64, "head_dim": 16, "num_key_value_heads": 1},
            "does more to its words",
        ),
    ],
)
def test_a_model_that_would_not_be_the_same_is_refused(
    kind: str,
    fields: dict[str, Any],
    said: str,
    tiny_vision: Any,
    tiny_tokenizer: Any,
    tiny_image_processor: Any,
) -> None:
    causal = getattr(transformers, kind)
    language = causal(causal.config_class(**SMALL, **fields)).eval()
    with pytest.raises(InputError, match=said):
        connect(tiny_vision, language, tiny_tokenizer, tiny_image_processor)


def test_an_output_shared_with_an_embedding_of_another_name_needs_the_linear_connector(
    tiny_vision: Any, tiny_tokenizer: Any, tiny_image_processor: Any
) -> None:
    config = transformers.GPT2Config(vocab_size=320, n_embd=32, n_layer=1, n_head=2)
    language = transformers.GPT2LMHeadModel(config).eval()
    with pytest.raises(InputError, match="shares its output's weights with `wte`"):
        connect(tiny_vision, language, tiny_tokenizer, tiny_image_processor, "mlp2x_gelu")


def test_a_tokenizer_without_an_image_token(tiny_vision: Any, tiny_image_processor: Any) -> None:
    tokenizer = make_tokenizer(SPECIAL[:3])
    language = make_language_model(tokenizer)
    with pytest.raises(InputError, match=r"no image token .*image_token='<image>' in the recipe adds one"):
        connect(tiny_vision, language, tokenizer, tiny_image_processor)
    model, processor = connect(tiny_vision, language, tokenizer, tiny_image_processor, image_token="<image>")
    assert processor.image_token_id == len(tokenizer) == model.config.image_token_id
    assert model.config.text_config.vocab_size == len(tokenizer) + 1
    assert torch.equal(words(model)[..., :-1], words(language))
    assert "<image>" not in tokenizer.get_vocab()


def test_the_language_models_dtype_is_kept(
    tiny_vision: Any, tiny_language_model: Any, tiny_tokenizer: Any, tiny_image_processor: Any, tmp_path: Path
) -> None:
    language = copy.deepcopy(tiny_language_model).to(torch.bfloat16)
    model, _ = connect(tiny_vision, language, tiny_tokenizer, tiny_image_processor)
    model.save_pretrained(tmp_path)
    for one in (model, AutoModelForImageTextToText.from_pretrained(tmp_path)):
        types = {name: value.dtype for name, value in one.named_parameters() if ".lambda_" not in name}
        assert set(types.values()) == {torch.bfloat16}
        tower = dict(one.model.vision_tower.named_parameters())
        for name, value in tiny_vision.named_parameters():  # λ stays as exact as it was
            assert ".lambda_" not in name or torch.equal(tower[name], value)
    with torch.no_grad():
        assert model.get_image_features(PIXELS.bfloat16()).pooler_output[0].dtype == torch.bfloat16
    assert next(tiny_vision.parameters()).dtype == torch.float32


def test_wrong_names_and_towers(
    tiny_vision: Any, tiny_language_model: Any, tiny_tokenizer: Any, tiny_image_processor: Any
) -> None:
    parts = (tiny_language_model, tiny_tokenizer, tiny_image_processor)
    with pytest.raises(InputError, match="unknown connector 'lineer': did you mean 'linear'"):
        connect(tiny_vision, *parts, "lineer")
    with pytest.raises(InputError, match="the vision tower has 1 layer"):
        connect(make_vision(layers=1), *parts)
    with pytest.raises(InputError, match="a qwen2 model has no connector"):
        connector_of(tiny_language_model.config)

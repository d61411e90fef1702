"""The connected model: its text is the language model's, its images the tower's, and it loads as it was saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_vlm import PATCHES, SPECIAL, make_language_model, make_tokenizer, make_vision
from transformers import AutoModelForImageTextToText, AutoProcessor

from diffclip.errors import InputError
from diffclip.vlm.chat import IGNORED, encode, prompt
from diffclip.vlm.conversations import Conversation, Turn
from diffclip.vlm.llava import CONNECTORS, connect, connector_of

SMALL = {"vocab_size": 440, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 64}
PIXELS = torch.linspace(-2, 2, 3 * 16 * 16).reshape(1, 3, 16, 16)


def words(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.tensor([[9, 40, 41, 7, 100]])).logits


@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_connected_model_is_its_parts_and_loads_with_auto_classes(
    connector: str, parts: Any, tmp_path: Path
) -> None:
    vision, language, _, _ = parts
    model, processor = connect(*parts, connector)
    assert connector_of(model.config) == connector
    assert torch.equal(words(model), words(language))
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert not {id(own) for own in language.parameters()} & {id(own) for own in model.parameters()}
    with torch.no_grad():
        features = model.get_image_features(pixel_values=PIXELS).pooler_output[0]
        # the output before the last layer, without the class token
        seen = vision(PIXELS, output_hidden_states=True).hidden_states[-2][:, 1:]
        assert torch.equal(features, model.model.multi_modal_projector(seen)[0])
    assert features.shape == (PATCHES, 32)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert loaded.generation_config.eos_token_id == model.generation_config.eos_token_id
    again = AutoProcessor.from_pretrained(tmp_path)
    assert (again.image_token, again.chat_template) == (processor.image_token, processor.chat_template)
    asked = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Is it red?"}]}]
    written = again.apply_chat_template(asked, add_generation_prompt=True)
    assert written == prompt(processor, "Is it red?", True)


def test_the_seed_decides_the_connectors_start(parts: Any) -> None:
    state = torch.random.get_rng_state()
    starts = [connect(*parts, seed=seed)[0].model.multi_modal_projector.weight for seed in (3, 3, 4)]
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_language_model_of_another_family(parts: Any) -> None:
    language = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).eval()
    model, _ = connect(parts[0], language, *parts[2:])
    assert torch.equal(words(model), words(language))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("PhiForCausalLM", "has a bias or a scale after its last layer"),
        ("GPTNeoXForCausalLM", "is not built as Llama and Qwen2 are"),
    ],
)
def test_language_models_that_do_not_fit(kind: str, message: str, parts: Any) -> None:
    causal = getattr(transformers, kind)
    language = causal(causal.config_class(**SMALL)).eval()
    with pytest.raises(InputError, match=message):
        connect(parts[0], language, *parts[2:])
    with_registers = make_vision()
    with_registers.config.registers = 4
    with pytest.raises(InputError, match="the vision tower has registers"):
        connect(with_registers, *parts[1:])


def test_tokens_that_a_tokenizer_lacks_are_added(parts: Any) -> None:
    tokenizer = make_tokenizer(SPECIAL[:1])
    language = make_language_model(tokenizer)
    model, processor = connect(parts[0], language, tokenizer, parts[3])
    assert processor.image_token == "<image>"
    assert processor.image_token_id == len(tokenizer) == model.config.image_token_id
    assert model.config.text_config.vocab_size == len(tokenizer) + 2  # <image>, <|im_start|>
    assert torch.equal(words(model)[..., :-2], words(language))
    ids, labels = encode(Conversation("0", "x.png", (Turn("Is it?", "No"),)), processor, "chat", 100)
    assert processor.tokenizer.decode([label for label in labels if label != IGNORED]) == "No<|im_end|>"
    assert ids.count(processor.image_token_id) == PATCHES
    assert "<image>" not in tokenizer.get_vocab()

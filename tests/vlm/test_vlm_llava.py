"""The connected model: the numbers of its parts, saving and loading, questions, and errors for unusable parts."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import in_process
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_vlm import PATCHES, SPECIAL, make_language_model, make_tokenizer, make_vision
from transformers import AutoModelForImageTextToText, AutoProcessor

from diffclip.errors import InputError
from diffclip.vlm.chat import IGNORED, answer, encode, prompt
from diffclip.vlm.conversations import Conversation, Turn
from diffclip.vlm.files import load_language_model, load_vision, load_vlm, save_vlm
from diffclip.vlm.llava import connect

SMALL = {"vocab_size": 440, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 64}
PIXELS = torch.linspace(-2, 2, 3 * 16 * 16).reshape(1, 3, 16, 16)


def words(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.tensor([[9, 40, 41, 7, 100]])).logits


def test_a_connected_model_matches_its_parts_and_loads_with_auto_classes(parts: Any, tmp_path: Path) -> None:
    vision, language, _, _ = parts
    model, processor = connect(*parts)
    assert torch.equal(words(model), words(language))
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert not {id(p) for p in language.parameters()} & {id(p) for p in model.parameters()}
    with torch.no_grad():
        features = model.get_image_features(pixel_values=PIXELS).pooler_output[0]
        # the output before the last layer, without the class token
        patches = vision(PIXELS, output_hidden_states=True).hidden_states[-2][:, 1:]
        assert torch.equal(features, model.model.multi_modal_projector(patches)[0])
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
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Is it red?"}]}]
    text = again.apply_chat_template(messages, add_generation_prompt=True)
    assert text == prompt(processor, "Is it red?", True)


def test_the_seed_determines_the_connectors_initial_weights(parts: Any) -> None:
    state = torch.random.get_rng_state()
    starts = [connect(*parts, seed=seed)[0].model.multi_modal_projector.weight for seed in (3, 3, 4)]
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])
    assert torch.equal(torch.random.get_rng_state(), state)


def test_llama_models_connect_and_other_families_are_refused(parts: Any) -> None:
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).eval()
    assert torch.equal(words(connect(parts[0], llama, *parts[2:])[0]), words(llama))
    for causal, message in (
        (transformers.PhiForCausalLM, "has a bias or a scale after its last layer"),
        (transformers.GPTNeoXForCausalLM, "is not built as Llama and Qwen2 are"),
    ):
        language = causal(causal.config_class(**SMALL)).eval()
        with pytest.raises(InputError, match=message):
            connect(parts[0], language, *parts[2:])
    with_registers = make_vision()
    with_registers.config.registers = 4
    with pytest.raises(InputError, match="the vision tower has registers"):
        connect(with_registers, *parts[1:])
    shallow = make_vision()
    shallow.config.num_hidden_layers = 1
    with pytest.raises(InputError, match="the vision tower has one layer"):
        connect(shallow, *parts[1:])


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


QUESTIONS = ("Is the picture light?", "What colour is the square? Describe the picture shortly.", "Yes?")


@pytest.fixture(scope="module")
def talker(tiny_vlm: tuple[Any, Any]) -> tuple[Any, Any]:
    """The tiny model with a confident language model, so that rounding does not change answers."""
    model = copy.deepcopy(tiny_vlm[0])
    with torch.no_grad():
        for parameter in model.model.language_model.parameters():
            parameter.mul_(12.0 if parameter.ndim > 1 else 1.0)
        model.model.multi_modal_projector.weight.mul_(50)
    model.generation_config.eos_token_id = [0]
    return model, tiny_vlm[1]


@pytest.fixture(scope="module")
def shades() -> list[Image.Image]:
    return [Image.new("RGB", (30, 20), (value, 255 - value, value)) for value in (0, 250)]


def test_runs_load_and_folders_without_a_model_are_refused(
    saved: Path, tiny_vlm: tuple[Any, Any], tiny_clip_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "clip" / "checkpoints").mkdir(parents=True)
    (tmp_path / "clip" / "recipe.yaml").write_text("model: CLIP-ViT-B-16\n")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "recipe.yaml").write_text("vision: x\nlanguage_model: y\n")
    for damage in ("cut off", "lacking"):
        file = shutil.copytree(saved, tmp_path / damage) / "model.safetensors"
        tensors = load_file(file)
        del tensors["model.multi_modal_projector.weight"]
        if damage == "cut off":
            file.write_bytes(file.read_bytes()[:5000])
        else:
            save_file(tensors, file, metadata={"format": "pt"})
    # transformers' default resizes with torchvision, the tower was trained with Pillow
    assert type(load_vlm(saved.parent)[1].image_processor) is type(tiny_vlm[1].image_processor)
    with pytest.raises(InputError, match="is in the way"):
        save_vlm(*tiny_vlm, saved)
    for source, message in (
        ("nowhere", "nowhere does not exist: give a run"),
        (tmp_path, "holds no model that answers questions about images: give"),
        (tmp_path / "clip", "holds no model that answers questions about images: give"),
        (tmp_path / "begun", "is a run that has not ended: finish it"),
        (tmp_path / "cut off", "holds no model that answers"),
        (tmp_path / "lacking", "its weights lack model.multi_modal_projector.weight"),
        (tiny_clip_folder, "holds no model that answers questions about images"),
    ):
        with pytest.raises(InputError, match=message):
            load_vlm(source)


def test_vision_towers_and_language_models_load_or_are_refused(
    tiny_clip_folder: Path, tiny_language_folder: Path, parts: Any, tmp_path: Path
) -> None:
    vision, image_processor = load_vision(str(tiny_clip_folder))
    pixels = torch.ones(1, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(vision(pixels).last_hidden_state, parts[0](pixels).last_hidden_state)
    assert dict(image_processor.crop_size) == {"height": 16, "width": 16}
    language, tokenizer = load_language_model(str(tiny_language_folder))
    assert torch.equal(language.lm_head.weight, parts[1].lm_head.weight)
    assert tokenizer.get_vocab() == parts[2].get_vocab()
    with pytest.raises(InputError, match="is a model's name and has no weights"):
        load_vision("DiffCLIP-ViT-B-16")
    with pytest.raises(InputError, match=r"language_model .* cannot be used"):
        load_language_model(str(tiny_clip_folder))
    transformers.ViTConfig().save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"cannot be used \(Unrecognized configuration class"):
        load_language_model(str(tmp_path))


def test_code_that_comes_with_weights_does_not_run(tmp_path: Path, tiny_language_folder: Path) -> None:
    folder = tmp_path / "strange"
    shutil.copytree(tiny_language_folder, folder)
    marker = tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w')")
    config = (folder / "config.json").read_text().replace('"qwen2"', '"own"')
    auto = '{"auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"},'
    (folder / "config.json").write_text(auto + config.lstrip().removeprefix("{"))
    with pytest.raises(InputError, match="cannot be used"):
        load_language_model(str(folder))
    assert not marker.exists()


def test_answers_are_the_same_in_a_batch_as_one_by_one(talker, shades: list[Image.Image]) -> None:
    images = [shades[0], None, shades[1]]
    together = answer(*talker, images, QUESTIONS, 6)
    pairs = zip(images, QUESTIONS, strict=True)
    alone = [answer(*talker, [image], [question], 6)[0] for image, question in pairs]
    assert together == alone
    assert all(together)
    assert len(set(answer(*talker, [*shades, None], [QUESTIONS[0]] * 3, 6))) == 3  # the image matters
    short = answer(*talker, shades[:1], QUESTIONS[:1], 2)[0]
    assert together[0].startswith(short)
    assert len(short) < len(together[0])


def test_the_ask_command_answers_each_question(talker, shades: list[Image.Image], tmp_path: Path) -> None:
    save_vlm(*talker, tmp_path / "run" / "model")
    image = tmp_path / "dark\udcff.png"  # a name that is not UTF-8
    shades[0].save(image)
    arguments = (image, *QUESTIONS[:2], "--model", tmp_path / "run")
    output, _ = in_process.call("vlm", "ask", *arguments, "--json", "--device", "cpu")
    lines = [json.loads(line) for line in output.splitlines()]
    assert [line["question"] for line in lines] == list(QUESTIONS[:2])
    assert [line["answer"] for line in lines] == [
        answer(*talker, shades[:1], [question])[0] for question in QUESTIONS[:2]
    ]
    for question, message in ((" ", "a question is empty"), ("Yes?", "device 'tpu9' is not available")):
        with pytest.raises(InputError, match=message):
            in_process.call("vlm", "ask", arguments[0], question, *arguments[3:], "--device", "tpu9")

"""Texts, images, pipelines and the Trainer on a folder that the Auto classes load."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from made_sets import photograph
from PIL import Image
from tiny_core import core, near
from transformers import (
    AutoImageProcessor,
    AutoProcessor,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
    default_data_collator,
    pipeline,
)

from diffclip import CLIP, InputError, PreprocessConfig
from diffclip.integrations.transformers import (
    from_diffclip,
    image_processor_of,
    processor_of,
    save_transformers,
    to_diffclip,
    tokenizer_of,
)
from diffclip.preprocess import EvalTransform
from diffclip.sources.transformers import preprocess_of
from diffclip.tokenizer import Tokenizer

TEXTS = [
    "   ",
    "A PHOTO of a   Dog!",
    "wow! really?! yes!!! ...! a!b !?!",
    "tab\tnew\nline\r\n and a no\xa0break",
    "don't won't I'm you're they've he'd she'll IT'S",
    "12 345 3.14 ½ x² café naïve e\u0301 ÀÉÎ",
    "😀 emoji ❤️ 🏳️‍🌈 日本語 한국어 العربية नमस्ते",
    "rock &amp; roll &lt;3 &amp;lt; &quot;x&quot; &#39;s",
    "“quoted” it’s a ﬁne ﬂower",
    "\ufeffmark, zero\u200bwidth, nul\x00, soft\u00adhyphen",
    "<|endoftext|> <b>bold</b> a_b-c/d … — ™",
    "a" * 300,
    "word " * 100,
]


@pytest.fixture(scope="module")
def model() -> CLIP:
    return core(vocabulary=49408, context=16, preprocess=PreprocessConfig(interpolation="bicubic", resize=20))


@pytest.fixture(scope="module")
def folder(model: CLIP, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("used") / "model"
    save_transformers(model, folder)
    return folder


@pytest.mark.parametrize("context", [6, 77])
def test_the_saved_tokenizer_gives_our_ids_without_our_code(tmp_path: Path, context: int) -> None:
    config = core(vocabulary=49408, context=context).config
    tokenizer_of(config).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert type(tokenizer).__module__.startswith("transformers.")
    assert tokenizer.model_max_length == context
    batch = tokenizer(TEXTS, padding="max_length", truncation=True, return_tensors="pt")
    ours = Tokenizer(config.text)(TEXTS)
    for text, theirs, row in zip(TEXTS, batch.input_ids.tolist(), ours.tolist(), strict=True):
        assert theirs == row, text
    assert torch.equal(batch.attention_mask.sum(1), ours.argmax(1) + 1)


def test_ids_decode_to_text_and_a_small_vocabulary_is_refused() -> None:
    tokenizer = tokenizer_of(core(vocabulary=49408).config)
    assert tokenizer.decode(tokenizer("A café, wow!").input_ids, skip_special_tokens=True) == "a café , wow !"
    with pytest.raises(InputError, match="vocabulary of 60 is smaller than the tokenizer's 49408"):
        tokenizer_of(core().config)


def test_text_features_are_taken_at_the_end_token_despite_added_tokens(model: CLIP) -> None:
    theirs, tokenizer, ours = from_diffclip(model), tokenizer_of(model.config), Tokenizer(model.config.text)
    tokenizer.add_tokens(["<new>"])
    theirs.resize_token_embeddings(len(tokenizer))
    ids = tokenizer(["a <new> cat", "a cat"], padding="max_length", return_tensors="pt").input_ids
    assert int(ids[0].max()) == 49408
    out = theirs.text_model(ids)
    end = int((ids[0] == 49407).nonzero())
    assert torch.equal(out.pooler_output[0], out.last_hidden_state[0, end])
    near(theirs.get_text_features(ids[1:]).pooler_output, model.encode_text(ours(["a cat"])))
    back = to_diffclip(theirs)  # the core's tokenizer never gives the new id
    near(back.encode_text(ours(["a cat"])), model.encode_text(ours(["a cat"])))
    theirs.config.text_config.eos_token_id = 320
    with pytest.raises(InputError, match="takes text features at the id 320"):
        to_diffclip(theirs)


@pytest.mark.parametrize(
    ("interpolation", "resize"), [("bilinear", None), ("bicubic", 40), ("bicubic", "squash")]
)
def test_pixels_are_ours(interpolation: Any, resize: Any) -> None:
    config = core().config
    config.vision.image_size = 32
    config.preprocess = PreprocessConfig(interpolation=interpolation, resize=resize)
    ours, theirs = EvalTransform(32, config.preprocess), image_processor_of(config)
    for size in ((50, 70), (32, 32), (90, 42), (21, 30)):
        image = photograph(*size, 1)
        near(theirs(image, return_tensors="pt").pixel_values[0], ours(image))
    if int(transformers.__version__.split(".")[1]) >= 23:  # older releases drop transparency
        clear = photograph(50, 70, 1)
        clear.putalpha(Image.linear_gradient("L").resize(clear.size))
        near(theirs(clear, return_tensors="pt").pixel_values[0], ours(clear))
    assert preprocess_of(theirs, 32, "theirs") == config.preprocess
    for change in ({"do_normalize": False}, {"size": {"shortest_edge": 32, "longest_edge": 40}}):
        processor = type(theirs)(**theirs.to_dict() | change)
        with pytest.raises(InputError, match="no counterpart here"):
            preprocess_of(processor, 32, "theirs")


def test_the_loaded_processor_equals_ours_with_pillow_else_nearly(folder: Path, model: CLIP) -> None:
    ours, image = EvalTransform(16, model.config.preprocess), photograph(40, 40, 1)
    pillow = AutoProcessor.from_pretrained(folder, backend="pil")
    near(pillow(images=image, return_tensors="pt").pixel_values[0], ours(image))
    torchvision = AutoImageProcessor.from_pretrained(folder)
    pixels = torchvision(image, return_tensors="pt").pixel_values[0]
    near(pixels, ours(image), 2.1 / 255 / 0.22)


def test_the_zero_shot_pipeline_gives_the_cores_probabilities(folder: Path, model: CLIP) -> None:
    image, labels = photograph(40, 40, 1), ["red", "a blue dog", "!"]
    processor = image_processor_of(model.config)
    classify = pipeline("zero-shot-image-classification", model=str(folder), image_processor=processor)
    scores = {answer["label"]: answer["score"] for answer in classify(image, candidate_labels=labels)}
    with torch.no_grad():
        out = model(
            EvalTransform(16, model.config.preprocess)(image)[None],
            Tokenizer(model.config.text)([f"This is a photo of {label}." for label in labels]),
        )
    logits = out["logit_scale"] * out["image_features"] @ out["text_features"].T
    near(torch.tensor([scores[label] for label in labels]), logits.softmax(-1)[0])


def test_the_trainer_lowers_the_loss(tmp_path: Path) -> None:
    torch.manual_seed(0)
    colors = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220), "white": (240, 240, 240)}
    config = core(vocabulary=49408).config
    processor = processor_of(config)
    photos = [Image.new("RGB", (20, 20), color) for color in colors.values()]
    batch = processor(text=list(colors), images=photos, padding="max_length", return_tensors="pt")
    pairs = [{name: values[number] for name, values in batch.items()} for number in range(len(photos))]

    def collate(samples: list[Any]) -> dict[str, Any]:
        return default_data_collator(samples) | {"return_loss": True}

    options = {"max_steps": 12, "per_device_train_batch_size": 4, "learning_rate": 3e-3, "logging_steps": 1}
    options |= {"save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True}
    arguments = TrainingArguments(output_dir=str(tmp_path), remove_unused_columns=False, **options)
    ours = from_diffclip(core(vocabulary=49408))
    trainer = Trainer(ours, arguments, train_dataset=pairs, data_collator=collate)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 12
    assert losses[-1] < 0.5 * losses[0]
    # accumulation must average the losses of the passes: **kwargs must not make it a sum
    assert not trainer.model_accepts_loss_kwargs
    trainer.save_model(str(tmp_path / "end"))
    assert (tmp_path / "end" / "model.safetensors").is_file()

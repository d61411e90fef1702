"""A tiny vision tower, language model, tokenizer and set of conversations, made in place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import diffclip

# the tower's images: 16 × 16 in patches of 8, so 4 patches an image
IMAGE_SIZE, PATCH_SIZE, PATCHES = 16, 8, 4
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>")
_CORPUS = (
    "You are a helpful assistant. system user assistant",
    "Is there a red circle in the image? Yes, there is. No, there is not.",
    "What colour is the square? The square is blue. Describe the picture shortly.",
)


def make_clip(attention: str = "differential", layers: int = 2, seed: int = 0) -> diffclip.CLIP:
    """A DiffCLIP of a few thousand weights."""
    tower = {"width": 16, "heads": 2, "attention": attention}
    config = diffclip.CLIPConfig(
        embed_dim=16,
        vision=tower | {"image_size": IMAGE_SIZE, "patch_size": PATCH_SIZE, "layers": layers},
        text=tower | {"context_length": 12, "layers": 1},
    )
    return diffclip.CLIP(config, seed=seed).eval()


def make_vision(attention: str = "differential", layers: int = 2, seed: int = 0) -> Any:
    """The DiffCLIPVisionModel of `make_clip`."""
    from diffclip.integrations.transformers import vision_from_diffclip

    return vision_from_diffclip(make_clip(attention, layers, seed)).eval()


def make_tokenizer(special: tuple[str, ...] = SPECIAL) -> Any:
    """A byte-level BPE tokenizer with Qwen2's special tokens; a text comes back as it was."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    start = {"special_tokens": list(special), "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    bpe.train_from_iterator(_CORPUS, trainers.BpeTrainer(vocab_size=320, show_progress=False, **start))
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=512
    )


def make_language_model(tokenizer: Any, seed: int = 0, **sizes: Any) -> Any:
    """A Qwen2 of a few thousand weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    fields = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
    }
    fields |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512}
    fields |= {"tie_word_embeddings": True, "bos_token_id": None}
    fields |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(Qwen2Config(**(fields | sizes))).eval()


def write_conversations(folder: Path, number: int = 12) -> tuple[Path, Path]:
    """(json, images): a set in LLaVA's format with a question a sample; every fifth has no image."""
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    samples = []
    for index in range(number):
        grey = index % 2 == 0
        sample: dict[str, Any] = {"id": f"s{index}"}
        question = "Is the picture light?"
        if index % 5 != 4:
            shade = (230, 230, 230) if grey else (20, 20, 20)
            Image.new("RGB", (20, 18), shade).save(images / f"{index}.png")
            sample["image"] = f"{index}.png"
            question = f"<image>\n{question}"
        answer = "Yes" if grey else "No"
        sample["conversations"] = [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
        samples.append(sample)
    file = folder / "conversations.json"
    file.write_text(json.dumps(samples), encoding="utf-8")
    return file, images

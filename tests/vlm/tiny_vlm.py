"""A tiny vision tower, language model, tokenizer and set of conversations, made in place."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AddedToken, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

import diffclip
from diffclip.errors import StoppedError
from diffclip.integrations.transformers import vision_from_diffclip
from diffclip.vlm.trainer import Reporter

# the tower's images: 16 × 16 in patches of 8, so 4 patches an image
IMAGE_SIZE, PATCH_SIZE, PATCHES = 16, 8, 4
_CORPUS = (
    "system user assistant\nYou are a helpful assistant.\n\nWhat is in the picture? A red circle.\n",
    "Is there a red circle? Yes. No. Are there two blue squares? It is “blue”, isn't it?\r\n",
    "Yes Yes Yes Yes No No red red assistant assistant",
)
# as in Qwen2.5's tokenizer_config.json: tool tokens are added but not special
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPECIAL += ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
ADDED = ("<tool_call>", "</tool_call>")


def make_clip(attention: str = "differential", seed: int = 0) -> diffclip.CLIP:
    """A DiffCLIP of a few thousand weights."""
    tower = {"width": 16, "heads": 2, "attention": attention}
    config = diffclip.CLIPConfig(
        embed_dim=16,
        vision=tower | {"image_size": IMAGE_SIZE, "patch_size": PATCH_SIZE, "layers": 2},
        text=tower | {"context_length": 12, "layers": 1},
    )
    return diffclip.CLIP(config, seed=seed).eval()


def make_vision(attention: str = "differential", seed: int = 0) -> Any:
    """The DiffCLIPVisionModel of `make_clip`."""
    return vision_from_diffclip(make_clip(attention, seed)).eval()


def make_tokenizer(special: tuple[str, ...] = SPECIAL) -> Any:
    """Make a tokenizer like Qwen2.5's (class, pre-tokenizer, special tokens) with a small vocabulary."""
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        _CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(bpe.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    options = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "model_max_length": 512}
    tokenizer = Qwen2Tokenizer(vocab=model["vocab"], merges=merges, **options)
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED])
    return tokenizer


def make_language_model(tokenizer: Any, **sizes: Any) -> Any:
    """A Qwen2 of a few thousand weights."""
    fields = {"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 64}
    fields |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    fields |= {"max_position_embeddings": 512, "tie_word_embeddings": True, "bos_token_id": None}
    fields |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**(fields | sizes))).eval()


@contextmanager
def stopped_after_a_save() -> Iterator[None]:
    """Send SIGTERM to the training in this block after it saves a checkpoint, and check that it stops."""

    def save_and_stop(*arguments: Any, **more: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(StoppedError, match="asked to stop at step"):
        patch.setattr(Reporter, "on_save", save_and_stop, raising=False)
        yield


def write_conversations(folder: Path, number: int = 12) -> tuple[Path, Path]:
    """Write a set in LLaVA's format: one question per sample, every fifth without an image. Return (json, images)."""
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

"""A tokenizer built as Qwen2.5's is (its class, its pre-tokenizer, its special tokens), of a small vocabulary."""

from __future__ import annotations

import json
from typing import Any

_CORPUS = (
    "system user assistant\nYou are a helpful assistant.\n\nWhat is in the picture? A red circle.\n",
    "Is there a red circle? Yes. No. Are there two blue squares? It is “blue”, isn't it?\r\n",
    "Yes Yes Yes Yes No No red red assistant assistant",
)
# as in its tokenizer_config.json: the tools' tokens are added but not special
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPECIAL += ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
ADDED = ("<tool_call>", "</tool_call>")


def make_tokenizer(special: tuple[str, ...] = SPECIAL, **fields: Any) -> Any:
    """A Qwen2Tokenizer; `fields` are its own."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import AddedToken, Qwen2Tokenizer
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        _CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(bpe.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Qwen2Tokenizer(vocab=model["vocab"], merges=merges, **fields)
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED])
    return tokenizer


def make_processor(tokenizer: Any, image_token: str = "<|image_pad|>", **fields: Any) -> Any:
    """A LlavaProcessor for images of 16 × 16 pixels in 4 patches, as `connect` makes it; `fields` are its own."""
    from transformers import CLIPImageProcessor, LlavaProcessor

    images = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    return LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        image_token=image_token,
        num_additional_image_tokens=1,
        **fields,
    )

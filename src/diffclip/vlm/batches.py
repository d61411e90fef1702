"""Conversations as batches: encoded and their pictures opened one by one, padded together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from diffclip.data.images import read_image
from diffclip.errors import InputError
from diffclip.vlm.chat import IGNORED, Template, encode
from diffclip.vlm.conversations import Conversation


class SampleError(InputError):
    """A sample that cannot be trained on, in one line wherever it was met.

    A DataLoader raises what its worker met again with the worker's traceback for a message; only its last line stays.
    """

    def __init__(self, message: str) -> None:
        last = message.rstrip().rpartition("\n")[2]
        super().__init__(last.removeprefix(f"{__name__}.{type(self).__name__}: "))


class ConversationSet(Dataset[dict[str, Any]]):
    """What a Trainer trains on. An item is `input_ids` and `labels` (lists of one length), and `pixel_values` [3, H, W]
    (float32) where the sample has a picture. The same at every asking: nothing here is random.

    Args:
        conversations: as `read_conversations` gives them.
        processor: a LlavaProcessor.
        template: "plain" or "chat", see `diffclip.vlm.chat.encode`.
        max_length: tokens, the picture's among them, after which a sample is cut.

    Asking for an item raises:
        SampleError: the sample cannot be encoded, or its picture not be read; the line names it.
    """

    def __init__(
        self, conversations: Sequence[Conversation], processor: Any, template: Template, max_length: int
    ) -> None:
        self.conversations = conversations
        self.processor = processor
        self.template: Template = template
        self.max_length = max_length

    def __len__(self) -> int:
        return len(self.conversations)

    def __getitem__(self, index: int) -> dict[str, Any]:
        try:
            conversation = self.conversations[index]
            ids, labels, picture = encode(conversation, self.processor, self.template, self.max_length)
            item: dict[str, Any] = {"input_ids": ids, "labels": labels}
            if picture is not None:
                image = read_image(picture, f"{conversation.name}: {picture}")
                pixels = self.processor.image_processor(images=image, return_tensors="pt")
                item["pixel_values"] = pixels["pixel_values"][0]
        except InputError as error:
            raise SampleError(str(error)) from error
        return item


class Collator:
    """Items of a `ConversationSet` as one batch, padded on the right to its longest.

    `input_ids`, `attention_mask` and `labels` are [B, L]; `pixel_values` [P, 3, H, W] holds the pictures of the P
    samples that have one, in their order, and is left out where none has.
    """

    def __init__(self, processor: Any) -> None:
        tokenizer = processor.tokenizer
        # any token would do under the mask
        self.padding: int = next(
            (token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token is not None), 0
        )

    def __call__(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        longest = max(len(item["input_ids"]) for item in items)
        shape = (len(items), longest)
        batch = {
            "input_ids": torch.full(shape, self.padding),
            "attention_mask": torch.zeros(shape, dtype=torch.int64),
            "labels": torch.full(shape, IGNORED),
        }
        for row, item in enumerate(items):
            length = len(item["input_ids"])
            batch["input_ids"][row, :length] = torch.tensor(item["input_ids"])
            batch["attention_mask"][row, :length] = 1
            batch["labels"][row, :length] = torch.tensor(item["labels"])
        pixels = [item["pixel_values"] for item in items if "pixel_values" in item]
        if pixels:
            batch["pixel_values"] = torch.stack(pixels)
        return batch

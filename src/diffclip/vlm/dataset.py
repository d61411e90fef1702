"""Conversations as a dataset: items, batches, and the order of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from diffclip.data.images import read_image
from diffclip.errors import InputError
from diffclip.vlm.chat import IGNORED, Template, encode
from diffclip.vlm.conversations import Conversation


def training_order(
    lengths: NDArray[np.int64], batch_size: int, seed: int, epochs: float
) -> NDArray[np.int64]:
    """Draw the samples of all batches of a training: each epoch has every sample once, in another order.

    A batch is sorted by the `lengths` of its samples, longest first, because it is split into passes over GPUs and over
    time: each pass takes neighboring samples, so it has little padding. Lengths do not decide which samples are in a
    batch, so they do not change the gradient.
    """
    generator = np.random.default_rng(seed)
    drawn = np.concatenate([generator.permutation(len(lengths)) for _ in range(math.ceil(epochs))])
    drawn = drawn[: round(epochs * len(lengths))]
    batches = np.split(drawn, range(batch_size, len(drawn), batch_size))
    return np.concatenate([batch[np.argsort(-lengths[batch], kind="stable")] for batch in batches])


@dataclass(eq=False)
class ConversationSet(Dataset[dict[str, Any]]):
    """Tokenize conversations with `encode` and a LlavaProcessor, and open their images in the folder `images`.

    An item has `input_ids` and `labels` (lists of equal length), and `pixel_values` [3, H, W] (float32) if the sample
    has an image. The item of a sample that cannot be used has its `InputError` as `fault`. `order` has the index of
    each item's sample.
    """

    conversations: Sequence[Conversation]
    order: Sequence[int] | NDArray[np.int64]
    images: str | Path
    processor: Any
    template: Template
    max_length: int

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, Any]:
        conversation = self.conversations[self.order[index]]
        try:
            ids, labels = encode(conversation, self.processor, self.template, self.max_length)
            item: dict[str, Any] = {"input_ids": ids, "labels": labels}
            if conversation.image is not None:
                path = Path(self.images, conversation.image)
                image = read_image(path, f"{conversation.name}: {path}")
                pixels = self.processor.image_processor(image, return_tensors="pt").pixel_values
                item["pixel_values"] = pixels[0]
        except InputError as error:
            return {"fault": error}
        return item


def collate(items: Sequence[dict[str, Any]], padding: int = 0) -> dict[str, Any]:
    """Make a batch from items of a `ConversationSet`, padded on the right with the token `padding`.

    `input_ids` and `attention_mask` are [B, L]. `labels` [B, K] are of the last K = `logits_to_keep` tokens: no row has
    an answer before them, and logits of images and questions would be computed for nothing. `pixel_values` [P, 3, H, W]
    holds the images of the P samples with an image, in their order; a batch without images has no `pixel_values`. If an
    item has a `fault`, the batch has it, and no samples.
    """
    for item in items:
        if "fault" in item:
            return {"fault": item["fault"], "labels": torch.empty(0, 0)}
    ids, rows = ([torch.tensor(item[name]) for item in items] for name in ("input_ids", "labels"))
    labels = pad_sequence(rows, True, IGNORED)
    first = int((labels != IGNORED).any(0).int().argmax())
    kept = labels.shape[1] - first + 1  # the token before an answer predicts it
    batch: dict[str, Any] = {
        "input_ids": pad_sequence(ids, True, padding),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], True),
        "labels": labels[:, -kept:],
        "logits_to_keep": kept,
    }
    pixels = [item["pixel_values"] for item in items if "pixel_values" in item]
    return batch | ({"pixel_values": torch.stack(pixels)} if pixels else {})

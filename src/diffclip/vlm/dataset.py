"""Conversations as a dataset: an index on disk instead of lists in memory, items, batches, and the order of samples.

LLaVA's JSON is a list of 600,000 samples or more. A run first checks them all and writes an index: a file with one line
per sample, and a NumPy array with the position of each line and the lengths of its texts. Training processes map the
array into memory and read single lines.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from diffclip.data.images import read_image
from diffclip.errors import InputError
from diffclip.files import printable, write_atomically
from diffclip.vlm.chat import IGNORED, Template, encode
from diffclip.vlm.conversations import Conversation, Turn, parse_sample, read_samples

# English text has 4 to 4.5 letters per token in vocabularies of 100,000 tokens or more
_LETTERS_PER_TOKEN = 4.0
# tokens that the template "chat" adds to a conversation, and to each of its turns
_AROUND, _AROUND_TURN = 20, 10


class Conversations(Sequence[Conversation]):
    """The conversations of a JSON `file`, read from its index one at a time."""

    def __init__(self, file: str, index: Path) -> None:
        self.file, self._lines = file, index / "lines.jsonl"
        # a row per sample: offset and bytes of its line, letters in questions and in answers, turns, has an image
        self._entries = np.load(index / "entries.npy", mmap_mode="r")

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: Any) -> Any:
        offset, size, *_ = self._entries[index]
        with self._lines.open("rb") as handle:
            handle.seek(int(offset))
            own_id, image, turns = json.loads(handle.read(int(size)))
        return Conversation(own_id, image, tuple(Turn(*turn) for turn in turns), index, self.file)

    def images(self) -> set[str]:
        """Return the paths of all images."""
        with self._lines.open("rb") as handle:
            return {json.loads(line)[1] for line in handle} - {None}

    def has_image(self) -> NDArray[np.bool_]:
        """Return for each sample [n] whether it has an image."""
        return np.asarray(self._entries[:, -1] > 0, np.bool_)

    def token_counts(self, template: str, image_tokens: int, max_length: int) -> NDArray[np.float64]:
        """Estimate the number of tokens [n] of each sample from its letters and image, at most `max_length`."""
        _, _, questions, answers, turns, image = self._entries.T
        if template == "plain":
            words = 1 + answers / _LETTERS_PER_TOKEN
        else:
            words = _AROUND + _AROUND_TURN * turns + (questions + answers) / _LETTERS_PER_TOKEN
        return np.asarray(np.minimum(max_length, image_tokens * image + words), np.float64)


def open_conversations(json_file: str | Path, images: str | Path, index: Path) -> Conversations:
    """Open conversations in LLaVA's JSON. The first call checks all samples and writes `index`, a folder.

    Args:
        json_file: a JSON list, or JSON lines; not read if the index exists.
        images: folder that the images' paths start from; every image must exist, but none is opened.

    Raises:
        InputError: the file cannot be read, a sample cannot be used (`parse_sample`), images are missing, or the index
            cannot be written.
    """
    file = str(json_file)
    if index.is_dir():
        conversations = Conversations(file, index)
        _check_images(conversations.images(), Path(images), file)
        return conversations
    print(f"{file}: checking its samples", file=sys.stderr)
    samples = [parse_sample(sample, number, file) for number, sample in enumerate(read_samples(file))]
    _check_images({sample.image for sample in samples if sample.image is not None}, Path(images), file)
    _write_index(samples, index)
    return Conversations(file, index)


def _check_images(names: set[str], folder: Path, file: str) -> None:
    """Raise `InputError` if images are missing. Listing folders is quicker than single look-ups on network disks."""
    parents = {os.path.dirname(name): set[str]() for name in names}
    for parent, files in parents.items():
        if (folder / parent).is_dir():
            files.update(os.listdir(folder / parent))
    missing = sorted(name for name in names if os.path.basename(name) not in parents[os.path.dirname(name)])
    if missing:
        raise InputError(
            f"{len(missing):,} of the {len(names):,} images of {file} are not in {folder}, such as "
            f"{', '.join(map(printable, missing[:3]))}: give the folder that these paths start from, or leave "
            "these samples out"
        )


def _write_index(samples: Sequence[Conversation], index: Path) -> None:
    entries: list[tuple[int, ...]] = []
    with write_atomically(index) as temporary:
        temporary.mkdir()
        with (temporary / "lines.jsonl").open("wb") as lines:
            for sample in samples:
                letters = [sum(map(len, texts)) for texts in zip(*sample.turns, strict=True)]
                line = json.dumps([sample.id, sample.image, sample.turns]).encode() + b"\n"
                has_image = sample.image is not None
                entries.append((lines.tell(), len(line), *letters, len(sample.turns), has_image))
                lines.write(line)
        np.save(temporary / "entries.npy", np.array(entries, dtype=np.int64))


def training_order(
    lengths: NDArray[np.float64], has_image: NDArray[np.bool_], batch_size: int, seed: int, epochs: float
) -> NDArray[np.int64]:
    """Draw the samples of all batches of a training: each epoch has every sample once, in another order.

    All samples of a batch have an image, or none has (`has_image`); only the last batches may mix both. A batch is
    sorted by the `lengths` of its samples, longest first, because it is split into passes over GPUs and over time: each
    pass takes neighboring samples, so it has little padding. Lengths do not decide which samples are in a batch, so
    they do not change the gradient. LLaVA does the same (`llava_trainer.py`, `get_modality_length_grouped_indices`).
    """
    generator = np.random.default_rng(seed)
    drawn = np.concatenate([generator.permutation(len(lengths)) for _ in range(math.ceil(epochs))])
    batches: list[list[int]] = []
    waiting: dict[bool, list[int]] = {True: [], False: []}
    for index in drawn[: round(epochs * len(lengths))].tolist():
        batch = waiting[bool(has_image[index])]
        batch.append(index)
        if len(batch) == batch_size:
            batches.append(batch.copy())
            batch.clear()
    rest = waiting[True] + waiting[False]
    batches += [rest[start : start + batch_size] for start in range(0, len(rest), batch_size)]
    return np.array([index for batch in batches for index in sorted(batch, key=lambda i: -lengths[i])])


class ConversationSet(Dataset[dict[str, Any]]):
    """Tokenize conversations with `encode` and a LlavaProcessor, and open their images in the folder `images`.

    An item has `input_ids` and `labels` (lists of equal length), and `pixel_values` [3, H, W] (float32) if the sample
    has an image. The item of a sample that cannot be used has its `InputError` as `fault`. `order` has the index of
    each item's sample.
    """

    def __init__(
        self,
        conversations: Sequence[Conversation],
        order: Sequence[int] | NDArray[np.int64],
        images: str | Path,
        processor: Any,
        template: Template,
        max_length: int,
    ) -> None:
        self._conversations, self._order, self._images = conversations, order, Path(images)
        self._processor = processor
        self._encode = partial(encode, processor=processor, template=template, max_length=max_length)

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> dict[str, Any]:
        try:
            return self._read(self._conversations[self._order[index]])
        except InputError as error:
            return {"fault": error}

    def _read(self, conversation: Conversation) -> dict[str, Any]:
        ids, labels = self._encode(conversation)
        item: dict[str, Any] = {"input_ids": ids, "labels": labels}
        if conversation.image is not None:
            path = self._images / conversation.image
            image = read_image(path, f"{conversation.name}: {path}")
            item["pixel_values"] = self._processor.image_processor(image, return_tensors="pt").pixel_values[0]
        return item


def collate(items: Sequence[dict[str, Any]], padding: int = 0) -> dict[str, Any]:
    """Make a batch from items of a `ConversationSet`, padded on the right with the token `padding`.

    `input_ids`, `attention_mask` and `labels` are [B, L]. `pixel_values` [P, 3, H, W] holds the images of the P samples
    with an image, in their order; a batch without images has no `pixel_values`. If an item has a `fault`, the batch has
    it, and no samples.
    """
    for item in items:
        if "fault" in item:
            return {"fault": item["fault"], "labels": torch.empty(0, 0)}
    ids = [torch.tensor(item["input_ids"]) for item in items]
    labels = [torch.tensor(item["labels"]) for item in items]
    batch = {
        "input_ids": pad_sequence(ids, True, padding),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], True),
        "labels": pad_sequence(labels, True, IGNORED),
    }
    pixels = [item["pixel_values"] for item in items if "pixel_values" in item]
    return batch | ({"pixel_values": torch.stack(pixels)} if pixels else {})

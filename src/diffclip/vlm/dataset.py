"""Conversations as a dataset: an index on disk instead of lists in memory, items, batches, and the order of samples.

LLaVA's JSON is a list of 600,000 samples or more. The first use checks them all and writes an index to the cache
folder: a file with one line per sample, and a NumPy array with the position of each line and the lengths of its texts.
Training processes map the array into memory and read single lines.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Sampler

from diffclip.data.images import read_image
from diffclip.errors import InputError, explain_errors
from diffclip.files import cache_folder, explain_disk_errors, hold_lock, printable, write_atomically
from diffclip.vlm.chat import IGNORED, Template, encode
from diffclip.vlm.conversations import Conversation, Turn, parse_sample, read_samples

_FORMAT = 2  # increase it when the format of lines or entries changes, so that old indexes are not read
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

    @property
    def digest(self) -> str:
        """The SHA-256 of the samples in their order; it does not depend on the path of the file."""
        with self._lines.open("rb") as lines:
            return hashlib.file_digest(lines, "sha256").hexdigest()

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


def open_conversations(json_file: str | Path, images: str | Path) -> Conversations:
    """Open conversations in LLaVA's JSON; the first call for a file checks all samples and makes the index.

    Args:
        json_file: a JSON list, or JSON lines.
        images: folder that the images' paths start from; every image must exist, but none is opened.

    Raises:
        InputError: the file cannot be read, a sample cannot be used (`parse_sample`), images are missing, or the cache
            folder cannot be written.
    """
    file = Path(json_file)
    with explain_errors(f"cannot read {json_file}", "check the path of the conversations"):
        status = file.stat()
    identity = f"{file.resolve()}\n{status.st_size}\n{status.st_mtime_ns}\n{_FORMAT}"
    folder = cache_folder() / "conversations" / hashlib.sha256(identity.encode()).hexdigest()[:16]
    with explain_disk_errors(folder), hold_lock(folder.with_suffix(".lock")):
        if not folder.is_dir():
            _make_index(file, folder)
    conversations = Conversations(str(json_file), folder)
    names = conversations.images()
    missing = _missing(Path(images), names)
    if missing:
        raise InputError(
            f"{len(missing):,} of the {len(names):,} images of {json_file} are not in {images}, such as "
            f"{', '.join(map(printable, missing[:3]))}: give the folder that these paths start from, or leave "
            "these samples out"
        )
    return conversations


def _missing(folder: Path, names: set[str]) -> list[str]:
    """Find missing images by listing folders: on network disks far faster than half a million single look-ups."""
    parents = {os.path.dirname(name): set[str]() for name in names}
    for parent, files in parents.items():
        if (folder / parent).is_dir():
            files.update(os.listdir(folder / parent))
    return sorted(name for name in names if os.path.basename(name) not in parents[os.path.dirname(name)])


def _make_index(file: Path, folder: Path) -> None:
    print(f"{file}: checking its samples", file=sys.stderr)
    entries: list[tuple[int, ...]] = []
    with write_atomically(folder) as temporary:
        temporary.mkdir()
        with (temporary / "lines.jsonl").open("wb") as lines:
            for index, sample in enumerate(read_samples(file)):
                parsed = parse_sample(sample, index, str(file))
                letters = [sum(map(len, texts)) for texts in zip(*parsed.turns, strict=True)]
                line = json.dumps([parsed.id, parsed.image, parsed.turns]).encode() + b"\n"
                entries.append(
                    (lines.tell(), len(line), *letters, len(parsed.turns), parsed.image is not None)
                )
                lines.write(line)
        np.save(temporary / "entries.npy", np.array(entries, dtype=np.int64))


class ConversationSet(Dataset[dict[str, Any]]):
    """Tokenize conversations with `encode` and a LlavaProcessor, and open their images in the folder `images`.

    An item has `input_ids` and `labels` (lists of equal length), and `pixel_values` [3, H, W] (float32) if the sample
    has an image. Nothing is random. A sample that cannot be used raises `InputError`.
    """

    def __init__(
        self,
        conversations: Sequence[Conversation],
        images: str | Path,
        processor: Any,
        template: Template,
        max_length: int,
    ) -> None:
        self._conversations, self._images = conversations, Path(images)
        self._processor = processor
        self._encode = partial(encode, processor=processor, template=template, max_length=max_length)

    def __len__(self) -> int:
        return len(self._conversations)

    def __getitem__(self, index: int) -> dict[str, Any]:
        conversation = self._conversations[index]
        ids, labels = self._encode(conversation)
        item: dict[str, Any] = {"input_ids": ids, "labels": labels}
        if conversation.image is not None:
            path = self._images / conversation.image
            image = read_image(path, f"{conversation.name}: {path}")
            item["pixel_values"] = self._processor.image_processor(image, return_tensors="pt").pixel_values[0]
        return item


def collate(items: Sequence[dict[str, Any]], padding: int = 0) -> dict[str, Tensor]:
    """Make a batch from items of a `ConversationSet`, padded on the right with the token `padding`.

    `input_ids`, `attention_mask` and `labels` are [B, L]. `pixel_values` [P, 3, H, W] holds the images of the P samples
    with an image, in their order; a batch without images has no `pixel_values`.
    """
    ids = [torch.tensor(item["input_ids"]) for item in items]
    labels = [torch.tensor(item["labels"]) for item in items]
    batch = {
        "input_ids": pad_sequence(ids, True, padding),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], True),
        "labels": pad_sequence(labels, True, IGNORED),
    }
    pixels = [item["pixel_values"] for item in items if "pixel_values" in item]
    return batch | ({"pixel_values": torch.stack(pixels)} if pixels else {})


class GroupedOrder(Sampler[int]):
    """Draw batches of `batch_size` at random, and sort each batch by the `lengths` of its samples, longest first.

    A batch is split into passes over GPUs and over time. Each pass takes neighboring samples, so it has little padding.
    Lengths do not decide which samples are in a batch, so they do not change the gradient. All samples of a batch have
    an image, or none has (`has_image`); only the last batches of an epoch may mix both. LLaVA does the same
    (`llava_trainer.py`, `get_modality_length_grouped_indices`).
    """

    def __init__(
        self, lengths: NDArray[np.float64], has_image: NDArray[np.bool_], batch_size: int, seed: int
    ) -> None:
        self._lengths, self._has_image = lengths, has_image
        self._batch_size, self._seed, self._epoch = batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, so that each epoch has another order; `Reporter` calls this."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng([self._seed, self._epoch]).permutation(len(self))
        waiting: dict[bool, list[int]] = {True: [], False: []}
        for index in order.tolist():
            batch = waiting[bool(self._has_image[index])]
            batch.append(index)
            if len(batch) == self._batch_size:
                yield from self._longest_first(batch)
                batch.clear()
        rest = waiting[True] + waiting[False]
        for start in range(0, len(rest), self._batch_size):
            yield from self._longest_first(rest[start : start + self._batch_size])

    def _longest_first(self, batch: list[int]) -> list[int]:
        return sorted(batch, key=lambda index: -self._lengths[index])

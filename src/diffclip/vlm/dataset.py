"""Conversations as a dataset: an index on disk in place of lists in memory, items, batches, and their order.

LLaVA's JSON is a list of 600,000 samples and more. It is read once, checked, and written to the cache folder as one
line a sample, beside a NumPy array with each line's place and the lengths of its texts. Training processes map that
array and read single lines.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from diffclip.data.images import read_image
from diffclip.errors import InputError
from diffclip.files import cache_folder, disk_errors, printable, write_atomically
from diffclip.vlm.chat import IGNORED, Template, encode
from diffclip.vlm.conversations import Conversation, Turn, missing_images, parse_sample, read_samples
from diffclip.vlm.progress import Progress

_ENTRY = np.dtype(
    [
        *(("offset", "<u8"), ("size", "<u4"), ("questions", "<u4")),
        *(("answers", "<u4"), ("turns", "<u4"), ("image", "?")),
    ]
)
"""Place and bytes of a line; letters of its questions and of its answers; turns; whether it has an image."""
_FORMAT = 1  # counts up when lines or entries change, so that older indexes are not read
_SHOWN = 3
# English in vocabularies of 100,000 words and more has 4 to 4.5 letters a token
_LETTERS_PER_TOKEN = 4.0
# tokens that the template "chat" adds to a conversation, and to each of its turns
_AROUND, _AROUND_TURN = 20, 10


class Conversations(Sequence[Conversation]):
    """Conversations of a JSON file that are read from its index one at a time.

    Attributes:
        file: the JSON file, for messages.
    """

    def __init__(self, file: str, lines: Path, entries: NDArray[Any]) -> None:
        self.file, self._lines, self._entries = file, lines, entries

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: Any) -> Any:
        entry = self._entries[index]
        with self._lines.open("rb") as handle:
            handle.seek(int(entry["offset"]))
            own_id, image, texts = json.loads(handle.read(int(entry["size"])))
        turns = tuple(Turn(*pair) for pair in zip(texts[::2], texts[1::2], strict=True))
        return Conversation(own_id, image, turns, index, self.file)

    def images(self) -> set[str]:
        """Return the paths of all images."""
        with self._lines.open("rb") as handle:
            return {image for image in (json.loads(line)[1] for line in handle) if image is not None}

    def token_counts(self, template: str, image_tokens: int, max_length: int) -> NDArray[np.float64]:
        """Estimate the tokens [n] of each sample from its letters, its image's included, at most `max_length`."""
        entries = self._entries
        if template == "plain":
            words = 1 + entries["answers"] / _LETTERS_PER_TOKEN
        else:
            letters = entries["questions"].astype(np.float64) + entries["answers"]
            words = _AROUND + _AROUND_TURN * entries["turns"] + letters / _LETTERS_PER_TOKEN
        return np.minimum(max_length, image_tokens * entries["image"] + words)


def open_conversations(json_file: str | Path, images: str | Path | None) -> Conversations:
    """Open conversations in LLaVA's JSON; the first call for a file checks all samples and makes the index.

    Args:
        json_file: a JSON list, or JSON lines.
        images: folder that the images' paths start from; every image must be there (folders are listed, no image is
            opened). None: no image is looked for.

    Raises:
        InputError: the file cannot be read, a sample cannot be used (`parse_sample`), images are missing, or the cache
            folder cannot be written.
    """
    file = Path(json_file)
    try:
        status = file.stat()
    except OSError as error:
        raise InputError(
            f"cannot read {json_file}: {error.strerror}; check the path of the conversations"
        ) from None
    identity = f"{file.resolve()}\n{status.st_size}\n{status.st_mtime_ns}\n{_FORMAT}"
    folder = cache_folder() / "conversations" / hashlib.sha256(identity.encode()).hexdigest()[:16]
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            with suppress(OSError):  # a file system without locks: two processes may both make the index
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                _make_index(file, status.st_size, folder)
    conversations = Conversations(
        str(json_file), folder / "lines.jsonl", np.load(folder / "entries.npy", mmap_mode="r")
    )
    names = set() if images is None else conversations.images()
    missing = missing_images(Path(images), names) if images is not None and names else set()
    if missing:
        shown = ", ".join(printable(name) for name in sorted(missing)[:_SHOWN])
        raise InputError(
            f"{len(missing):,} of the {len(names):,} images of {json_file} are not in {images}, such as {shown}: give "
            "the folder that these paths start from, or keep the samples with images by 'diffclip vlm data --folder'"
        )
    return conversations


def _make_index(file: Path, size: int, folder: Path) -> None:
    entries: list[tuple[int, int, int, int, int, bool]] = []
    offset = 0
    with write_atomically(folder) as temporary, Progress(f"{file}: checking samples", size) as show:
        temporary.mkdir()
        with (temporary / "lines.jsonl").open("wb") as lines:
            for index, sample in enumerate(read_samples(file)):
                one = parse_sample(sample, index, str(file))
                questions, answers = (sum(map(len, texts)) for texts in zip(*one.turns, strict=True))
                line = json.dumps([one.id, one.image, [text for turn in one.turns for text in turn]])
                lines.write(line.encode() + b"\n")
                entries.append((offset, len(line), questions, answers, len(one.turns), one.image is not None))
                offset += len(line) + 1
                show(min(offset, size))
        np.save(temporary / "entries.npy", np.array(entries, dtype=_ENTRY))


class SampleError(InputError):
    """Name a sample that cannot be trained on, in one line.

    A DataLoader raises an error of its worker again with the worker's traceback as message; the last line of that is
    this error's own.
    """

    def __init__(self, message: str) -> None:
        last = message.rstrip().rpartition("\n")[2]
        super().__init__(last.removeprefix(f"{__name__}.{type(self).__name__}: "))


class ConversationSet(Dataset[dict[str, Any]]):
    """Tokenize conversations and open their images; nothing is random.

    An item is `input_ids` and `labels` (lists of one length), and `pixel_values` [3, H, W] (float32) where the sample
    has an image.

    Args:
        conversations: as `open_conversations` returns them.
        images: folder that the images' paths start from.
        processor: a LlavaProcessor.
        template: "plain" or "chat", see `diffclip.vlm.chat.encode`.
        max_length: tokens, the image's included, after which a sample is cut.

    Reading an item raises:
        SampleError: the sample cannot be tokenized, or its image cannot be read.
    """

    def __init__(
        self,
        conversations: Sequence[Conversation],
        images: str | Path,
        processor: Any,
        template: Template,
        max_length: int,
    ) -> None:
        self.conversations, self.images, self.processor = conversations, Path(images), processor
        self.template: Template = template
        self.max_length = max_length

    def __len__(self) -> int:
        return len(self.conversations)

    def __getitem__(self, index: int) -> dict[str, Any]:
        conversation = self.conversations[index]
        try:
            ids, labels = encode(conversation, self.processor, self.template, self.max_length)
            item: dict[str, Any] = {"input_ids": ids, "labels": labels}
            if conversation.image is not None:
                path = self.images / conversation.image
                image = read_image(path, f"{conversation.name}: {path}")
                item["pixel_values"] = self.processor.image_processor(images=image, return_tensors="pt")[
                    "pixel_values"
                ][0]
        except InputError as error:
            raise SampleError(str(error)) from error
        return item


class Collator:
    """Make a batch of items of a `ConversationSet`, padded on the right to the longest.

    `input_ids`, `attention_mask` and `labels` are [B, L]; `pixel_values` [P, 3, H, W] has the images of the P samples
    that have one, in their order, and is left out if none has.
    """

    def __init__(self, processor: Any) -> None:
        tokenizer = processor.tokenizer
        tokens = (tokenizer.pad_token_id, tokenizer.eos_token_id)
        # under the mask any token will do
        self._padding: int = next((token for token in tokens if token is not None), 0)

    def __call__(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        batch = pad([(item["input_ids"], item["labels"]) for item in items], self._padding)
        pixels = [item["pixel_values"] for item in items if "pixel_values" in item]
        return batch | ({"pixel_values": torch.stack(pixels)} if pixels else {})


def pad(rows: Sequence[tuple[list[int], list[int]]], padding: int) -> dict[str, Tensor]:
    """Make `input_ids`, `attention_mask` and `labels`, each [B, L], of rows of token ids and labels."""
    shape = (len(rows), max(len(ids) for ids, _ in rows))
    batch = {
        "input_ids": torch.full(shape, padding),
        "attention_mask": torch.zeros(shape, dtype=torch.int64),
        "labels": torch.full(shape, IGNORED),
    }
    for row, (ids, labels) in enumerate(rows):
        batch["input_ids"][row, : len(ids)] = torch.tensor(ids)
        batch["attention_mask"][row, : len(ids)] = 1
        batch["labels"][row, : len(ids)] = torch.tensor(labels)
    return batch


class GroupedOrder(Sampler[int]):
    """Draw batches at random, and sort each of them by length, the longest sample first.

    A batch is computed in passes of neighbors, over GPUs and in time, so that each pass pads little; which samples are
    in a batch, and so the gradient, does not depend on lengths. LLaVA does the same (`llava_trainer.py`,
    `get_length_grouped_indices`), and keeps samples without images apart besides.

    Args:
        lengths: tokens of each sample.
        batch_size: samples of a step, over all passes and processes.
        seed: with the epoch decides the order.
    """

    def __init__(self, lengths: NDArray[np.float64], batch_size: int, seed: int) -> None:
        self._lengths, self._batch_size, self._seed, self._epoch = lengths, batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Draw another order for each epoch; the DataLoader calls this."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng([self._seed, self._epoch]).permutation(len(self))
        for start in range(0, len(order), self._batch_size):
            batch = order[start : start + self._batch_size]
            yield from batch[np.argsort(-self._lengths[batch], kind="stable")].tolist()

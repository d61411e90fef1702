"""Convert texts to ids: OpenCLIP's byte-pair tokenizer, which keeps the end-of-text token when it truncates."""

from __future__ import annotations

import heapq
import importlib.util
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from diffclip.config import VOCABULARY, TextConfig
from diffclip.errors import InputError

# OpenCLIP's `bpe` takes time that is quadratic in the letters of a word, and remembers each word for good.
_LONGEST_WORD = 64


class Tokenizer:
    """Callable that converts one or several texts to int64 ids [n, context_length], padded with 0.

    Raises (when called):
        InputError: the model's vocabulary is smaller than the tokenizer's.
    """

    def __init__(self, config: TextConfig) -> None:
        self.context_length = config.context_length
        self.vocab_size = config.vocab_size

    def __call__(self, texts: str | Sequence[str]) -> Tensor:
        ids: Tensor = self._encoder()([texts] if isinstance(texts, str) else list(texts))
        return ids

    def pieces(self, texts: str | Sequence[str]) -> list[list[str]]:
        """Return the tokens of each text between start and end; the last token of a word ends in a space."""
        bpe = self._encoder()
        rows = ((row, int(row.argmax())) for row in self(texts))
        return [[bpe.decode([token]) for token in row[1:end].tolist()] for row, end in rows]

    def _encoder(self) -> Any:
        if self.vocab_size < VOCABULARY:
            raise InputError(
                f"the model's vocabulary of {self.vocab_size} is smaller than the tokenizer's {VOCABULARY}: "
                "encode_text takes ids of your own"
            )
        return _open_clip_tokenizer(self.context_length)


@cache
def _open_clip_tokenizer(context_length: int) -> Any:
    """Load OpenCLIP's tokenizer from its file alone: `import open_clip` takes seconds, mostly for transformers."""
    package: Any = importlib.util.find_spec("open_clip")
    file = Path(package.submodule_search_locations[0]) / "tokenizer.py"
    spec: Any = importlib.util.spec_from_file_location("open_clip_tokenizer", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tokenizer = module.SimpleTokenizer(context_length=context_length)
    short_bpe = tokenizer.bpe
    tokenizer.bpe = lambda word: (
        short_bpe(word) if len(word) <= _LONGEST_WORD else _merge_long(word, tokenizer.bpe_ranks)
    )
    return tokenizer


def _merge_long(word: str, ranks: Mapping[tuple[str, str], int]) -> str:
    """Merge the bytes of a word as OpenCLIP's `bpe` does, without searching the whole word for each merge."""
    end = len(word)
    pieces = [*word[:-1], f"{word[-1]}</w>", ""]  # the last one is never merged
    before, after = [*range(-1, end)], [*range(1, end + 2)]
    heap: list[tuple[int, int]] = []

    def push(i: int) -> None:
        if i >= 0 and (rank := ranks.get((pieces[i], pieces[after[i]]))) is not None:
            heapq.heappush(heap, (rank, i))

    for i in range(end - 1):
        push(i)
    while heap:
        # as OpenCLIP: all pairs of the lowest rank from left to right, before pairs that these merges make
        lowest, positions = heap[0][0], []
        while heap and heap[0][0] == lowest:
            positions.append(heapq.heappop(heap)[1])
        for i in positions:
            following = after[i]
            if pieces[i] and ranks.get((pieces[i], pieces[following])) == lowest:
                pieces[i], pieces[following] = pieces[i] + pieces[following], ""
                after[i] = after[following]
                before[after[i]] = i
                push(before[i])
                push(i)
    return " ".join(filter(None, pieces))


def check_end_of_text(end: int | None, vocabulary: int, source: str) -> None:
    """Raise `InputError` unless text features are taken at the largest id, as ours are.

    The id `end` must be None (the largest id), the last of the vocabulary, or the largest that our tokenizer gives.
    """
    if not (end in (None, vocabulary - 1) or VOCABULARY - 1 == end < vocabulary):
        raise InputError(
            f"{source} takes text features at the id {end}, not the largest of {vocabulary}: use a model whose "
            "end-of-text token is the largest id"
        )

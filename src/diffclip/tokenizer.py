"""Convert texts to ids: OpenCLIP's byte-pair tokenizer, which keeps the end-of-text token when it truncates.

The ids are those of `open_clip.SimpleTokenizer`, in a tenth of its time: the ids of each word are kept, and plain texts
skip the cleaning that cannot change them.
"""

from __future__ import annotations

import heapq
import importlib.util
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diffclip.config import VOCABULARY, TextConfig
from diffclip.errors import InputError

_KEPT_WORDS = 2**15


class Tokenizer:
    """Callable that converts one or several texts to int64 ids [n, context_length], padded with 0.

    Raises (when called):
        InputError: the model's vocabulary is smaller than the tokenizer's.
    """

    def __init__(self, config: TextConfig) -> None:
        self.context_length = config.context_length
        self.vocab_size = config.vocab_size

    def __call__(self, texts: str | Sequence[str]) -> Tensor:
        if self.vocab_size < VOCABULARY:
            raise InputError(
                f"the model's vocabulary of {self.vocab_size} is smaller than the tokenizer's {VOCABULARY}: "
                "encode_text takes ids of your own"
            )
        bpe, texts = _open_clip_tokenizer(), [texts] if isinstance(texts, str) else texts
        ids = np.zeros((len(texts), self.context_length), np.int64)
        for row, text in zip(ids, texts, strict=True):
            tokens = [bpe.sot_token_id]
            for word in _words(text):
                tokens += _ids_of(word)
            tokens[self.context_length - 1 :] = [bpe.eot_token_id]
            row[: len(tokens)] = tokens
        return torch.from_numpy(ids)

    def pieces(self, texts: str | Sequence[str]) -> list[list[str]]:
        """Return the tokens of each text between start and end; the last token of a word ends in a space."""
        bpe = _open_clip_tokenizer()
        rows = ((row, int(row.argmax())) for row in self(texts))
        return [[bpe.decode([token]) for token in row[1:end].tolist()] for row, end in rows]


@cache
def _open_clip_tokenizer() -> Any:
    """Load OpenCLIP's tokenizer from its file alone: `import open_clip` takes seconds, mostly for transformers."""
    package: Any = importlib.util.find_spec("open_clip")
    file = Path(package.submodule_search_locations[0]) / "tokenizer.py"
    spec: Any = importlib.util.spec_from_file_location("open_clip_tokenizer", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kind = module.SimpleTokenizer
    # the module makes one as it loads, and a second one would take as long again
    return next((made for made in vars(module).values() if isinstance(made, kind)), None) or kind()


def _words(text: str) -> list[str]:
    """Split a text at its spaces, after OpenCLIP's cleaning: repaired characters, HTML entities replaced, lower case.
    Repair and replacement, which take most of the time, leave printable ASCII without `&` as it is."""
    if text.isascii() and text.isprintable() and "&" not in text:
        return text.lower().split()
    cleaned: str = _open_clip_tokenizer().clean_fn(text)
    return cleaned.split()


@lru_cache(_KEPT_WORDS)
def _ids_of(word: str) -> tuple[int, ...]:
    """Return the ids of a clean word. No token reaches over a space, so the words of a text are independent."""
    bpe = _open_clip_tokenizer()
    ids: list[int] = []
    for part in bpe.pat.findall(word):
        letters = "".join(bpe.byte_encoder[byte] for byte in part.encode())
        # `cache` has the special tokens, which are one id each
        pieces = [part] if part in bpe.cache else _merge(letters, bpe.bpe_ranks)
        ids += [bpe.encoder[piece] for piece in pieces]
    return tuple(ids)


def _merge(word: str, ranks: Mapping[tuple[str, str], int]) -> list[str]:
    """Merge the bytes of a word as OpenCLIP's `bpe` does, without searching the whole word for each merge, which takes
    seconds for a word of thousands of letters."""
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
    return [piece for piece in pieces if piece]


def check_end_of_text(end: int | None, vocabulary: int, source: str) -> None:
    """Raise `InputError` unless text features are taken at the largest id, as ours are.

    The id `end` must be None (the largest id), the last of the vocabulary, or the largest that our tokenizer gives.
    """
    if not (end in (None, vocabulary - 1) or VOCABULARY - 1 == end < vocabulary):
        raise InputError(
            f"{source} takes text features at the id {end}, not the largest of {vocabulary}: use a model whose "
            "end-of-text token is the largest id"
        )

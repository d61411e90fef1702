"""How many tokens samples have, before there is a tokenizer: counted in a set's letters, or assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diffclip.vlm.conversations import Conversation

# English in vocabularies of 100,000 words and more: 4 to 4.5 letters a token
_LETTERS = 4.0
# what the template "chat" writes around a conversation, and around each of its turns
_AROUND, _AROUND_A_TURN = 20, 10


@dataclass(frozen=True)
class Lengths:
    """Tokens of a sample, its picture's included.

    Attributes:
        mean: on average.
        padded: the longest of a pass, to which all in it are padded, on average.
        longest: the longest of all.
        measured: whether they were counted in the samples, or assumed.
    """

    mean: float
    padded: float
    longest: float
    measured: bool


# (mean, longest of a pass of some dozens, longest of all), text alone: assumptions for LLaVA's two sets, captions of
# some ten words, and the mix, from one-word answers to talks of many turns that are cut off at max_length
_ASSUMED = {"plain": (16, 40, 120), "chat": (220, 700, 10_000)}


def assumed_lengths(template: str, picture: int, most: int) -> Lengths:
    """For a set that is not here; `picture` is a picture's tokens, `most` the recipe's max_length."""
    mean, padded, longest = (min(most, picture + text) for text in _ASSUMED[template])
    return Lengths(mean, padded, longest, False)


def count_lengths(
    conversations: Sequence[Conversation], template: str, picture: int, most: int, together: int
) -> Lengths:
    """From the letters of `conversations`; `together` is the number of samples in a pass."""
    lengths = sorted(min(most, _length(sample, template, picture)) for sample in conversations)
    number = len(lengths)
    # the mean of the largest of `together` draws
    padded = sum(
        length * (((index + 1) / number) ** together - (index / number) ** together)
        for index, length in enumerate(lengths)
    )
    return Lengths(sum(lengths) / number, padded, lengths[-1], True)


def _length(sample: Conversation, template: str, picture: int) -> float:
    seen = picture if sample.picture is not None else 0
    if template == "plain":
        return seen + 1 + len(sample.turns[0].answer) / _LETTERS
    letters = sum(len(turn.question) + len(turn.answer) for turn in sample.turns)
    return seen + _AROUND + _AROUND_A_TURN * len(sample.turns) + letters / _LETTERS

"""Answers that many figures and tables ask for, worked out once a collection and gone with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

from diffclip.report.series import Collection

_Answer = TypeVar("_Answer")
_Question = TypeVarTuple("_Question")


def kept(
    function: Callable[[Collection, *_Question], _Answer],
) -> Callable[[Collection, *_Question], _Answer]:
    """`function`, asked once for each collection and (hashable) question; its answers must not hold the collection."""
    answers: WeakKeyDictionary[Collection, dict[tuple[object, ...], _Answer]] = WeakKeyDictionary()

    @wraps(function)
    def answer(collection: Collection, *question: *_Question) -> _Answer:
        own = answers.setdefault(collection, {})
        if question not in own:
            own[question] = function(collection, *question)
        return own[question]

    return answer

"""Minimal pairs for the nine patterns of MMVP-VLM (Tong et al. 2024, arXiv 2401.06209; tsb0601/MMVP).

The two pictures of a pair differ in one thing; each statement is true of its own picture alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from diffclip.data.mmvp import PATTERNS
from diffclip.errors import InputError, unknown
from diffclip.scenes.layout import Dice, Spec, at_distance, choose_kind, place, stream
from diffclip.scenes.phrases import NUMBERS, lacking, noun_phrase, place_of, plural
from diffclip.scenes.scene import check_size, compose
from diffclip.scenes.vocabulary import (
    BACKGROUNDS,
    COLOURS,
    DETAILS,
    DISTANCES,
    FEATURES,
    LETTERS,
    ORIENTATIONS,
    SHAPES,
    SIZES,
    STATES,
    STRUCTURES,
    TEXTURES,
    VIEWS,
    WORDS,
    Detail,
    may_have,
)

COLOUR = frozenset({"colour"})


@dataclass(frozen=True, eq=False)
class MinimalPair:
    """Two pictures (uint8 [H, W, 3]) and two statements, the first true of the first picture only."""

    pattern: str
    images: tuple[NDArray[np.uint8], NDArray[np.uint8]]
    statements: tuple[str, str]


@dataclass(frozen=True)
class _Plan:
    """What the two pictures of a pair show, and what is said of them."""

    first: Sequence[Spec]
    second: Sequence[Spec]
    statements: tuple[str, str]


def _subject(dice: Dice, background: str, shapes: Sequence[str], detail: str | None = None) -> Spec:
    """A large plain object that could carry `detail`."""
    while True:
        spec = choose_kind(dice, background, dice.pick(shapes))
        if detail is None or may_have(detail, spec.shape, spec.colour, background):
            orientation = "up" if spec.orientation else None
            return replace(spec, size="large", texture="plain", orientation=orientation, detail=None)


def _beside(subject: Spec, dice: Dice, background: str) -> list[Spec]:
    """`subject` in its place, alone or with a small thing of another shape and colour that stays the same."""
    others = []
    if dice.chance(0.5):
        other = choose_kind(dice, background, dice.pick([s for s in SHAPES if s != subject.shape]))
        if other.colour != subject.colour:
            others = [replace(other, size="small", texture="plain", detail=None)]
    placed = place([subject, *others], dice)
    return sorted(placed, key=lambda spec: spec.shape != subject.shape)


def _change(specs: Sequence[Spec], **changes: str | float | None) -> list[Spec]:
    return [replace(specs[0], **changes), *specs[1:]]  # type: ignore[arg-type]


def _with_and_without(dice: Dice, background: str, details: dict[str, Detail]) -> _Plan:
    """An object with one of `details`, and the same object lacking it."""
    name = dice.pick([name for name, entry in details.items() if background not in entry.not_on])
    without = _beside(_subject(dice, background, details[name].shapes, name), dice, background)
    having = _change(without, detail=name)
    texts = (noun_phrase(having[:1], COLOUR | {"detail"}), noun_phrase(without[:1], COLOUR | {lacking(name)}))
    return _Plan(having, without, texts)


def _orientation(dice: Dice, background: str) -> _Plan:
    specs = _beside(_subject(dice, background, tuple(ORIENTATIONS)), dice, background)
    one, two = dice.shuffle(ORIENTATIONS[specs[0].shape])[:2]
    first, second = _change(specs, orientation=one), _change(specs, orientation=two)
    said = COLOUR | {"orientation"}
    return _Plan(first, second, (noun_phrase(first[:1], said), noun_phrase(second[:1], said)))


def _presence(dice: Dice, background: str) -> _Plan:
    if dice.chance(0.7):
        return _with_and_without(dice, background, FEATURES)
    subject, other = _two_kinds(dice, background)
    both = place([subject, replace(other, size="medium")], dice)
    both.sort(key=lambda spec: spec.shape != subject.shape)
    start = noun_phrase([subject], COLOUR)
    thing = noun_phrase([other], COLOUR)
    return _Plan(both, both[:1], (f"{start} with {thing} beside it", f"{start} with nothing beside it"))


def _state(dice: Dice, background: str) -> _Plan:
    return _with_and_without(dice, background, STATES)


def _quantity(dice: Dice, background: str) -> _Plan:
    subject = replace(_subject(dice, background, SHAPES), size=dice.pick(("small", "medium")))
    count = dice.pick((1, 2, 3))
    more = place([subject] * (count + 1), dice)
    texts = [
        f"{NUMBERS[n]} {subject.colour} {subject.shape if n == 1 else plural(subject.shape)}"
        for n in (count, count + 1)
    ]
    return _Plan(more[:count], more, (texts[0], texts[1]))


def _two_kinds(dice: Dice, background: str) -> tuple[Spec, Spec]:
    """Two objects of different shapes and colours."""
    one = _subject(dice, background, SHAPES)
    while True:
        two = _subject(dice, background, [s for s in SHAPES if s != one.shape])
        if two.colour != one.colour:
            return one, two


_SPOTS = (
    (0.26, 0.26),
    (0.74, 0.26),
    (0.26, 0.74),
    (0.74, 0.74),
    (0.5, 0.24),
    (0.5, 0.76),
    (0.24, 0.5),
    (0.76, 0.5),
)


def _at(spec: Spec, spot: tuple[float, float]) -> Spec:
    return replace(spec, x=spot[0], y=spot[1])


def _position(dice: Dice, background: str) -> _Plan:
    if dice.chance(0.5):
        subject = replace(_subject(dice, background, SHAPES), size="medium")
        here, there = dice.shuffle(_SPOTS)[:2]
        first, second = [_at(subject, here)], [_at(subject, there)]
        start = noun_phrase([subject], COLOUR)
        return _Plan(first, second, (f"{start} {place_of(first[0])}", f"{start} {place_of(second[0])}"))
    one, two = (replace(spec, size="medium", radius=SIZES["medium"]) for spec in _two_kinds(dice, background))
    drift = dice.between(0.42, 0.58)
    if dice.chance(0.5):
        low, high, words = (0.27, drift), (0.73, drift), ("to the left of", "to the right of")
    else:
        low, high, words = (drift, 0.27), (drift, 0.73), ("above", "below")
    a, b = noun_phrase([one], COLOUR), noun_phrase([two], COLOUR)
    return _Plan(
        [_at(one, low), _at(two, high)],
        [_at(one, high), _at(two, low)],
        (f"{a} {words[0]} {b}", f"{a} {words[1]} {b}"),
    )


def _colour(dice: Dice, background: str) -> _Plan:
    specs = _beside(_subject(dice, background, SHAPES), dice, background)
    if dice.chance(0.65):
        taken = {spec.colour for spec in specs} | set(BACKGROUNDS[background].hides)
        first, second = (
            specs,
            _change(specs, colour=dice.pick([name for name in COLOURS if name not in taken])),
        )
        said = COLOUR
    else:
        one, two = dice.shuffle(TEXTURES)[:2]
        first, second = _change(specs, texture=one), _change(specs, texture=two)
        said = COLOUR | {"texture"}
    return _Plan(first, second, (noun_phrase(first[:1], said), noun_phrase(second[:1], said)))


def _structure(dice: Dice, background: str) -> _Plan:
    return _with_and_without(dice, background, STRUCTURES)


def _text(dice: Dice, background: str) -> _Plan:
    kind, texts = dice.pick((("letter", LETTERS), ("word", WORDS)))
    one, two = (f"{kind} {text}" for text in dice.shuffle(texts)[:2])
    subject = _subject(dice, background, DETAILS[one].shapes)
    first = _change(_beside(subject, dice, background), tilt=0.0, detail=one)
    second = _change(first, detail=two)
    said = COLOUR | {"detail"}
    return _Plan(first, second, (noun_phrase(first[:1], said), noun_phrase(second[:1], said)))


def _viewpoint(dice: Dice, background: str) -> _Plan:
    if dice.chance(0.5):
        return _with_and_without(dice, background, VIEWS)
    near = at_distance(_subject(dice, background, SHAPES), "near", dice)
    far = replace(near, detail="far", size="small", radius=DISTANCES["far"][2])
    said = COLOUR | {"detail"}
    return _Plan([near], [far], (noun_phrase([near], said), noun_phrase([far], said)))


_PLANS: dict[str, Callable[[Dice, str], _Plan]] = {
    "Orientation and Direction": _orientation,
    "Presence of Specific Features": _presence,
    "State and Condition": _state,
    "Quantity and Count": _quantity,
    "Positional and Relational Context": _position,
    "Color and Appearance": _colour,
    "Structural Characteristics": _structure,
    "Texts": _text,
    "Viewpoint and Perspective": _viewpoint,
}


def minimal_pair(pattern: str, index: int, seed: int = 0, size: int = 64) -> MinimalPair:
    """Pair number `index` of a pattern, the same for the same arguments.

    Raises:
        InputError: an unknown pattern, a picture below 16 pixels, or an index or seed out of range.
    """
    if pattern not in _PLANS:
        raise unknown("pattern", pattern, PATTERNS)
    check_size(size)
    if index < 0:
        raise InputError(f"index {index} is out of range: give a whole number from 0")
    number = index * len(PATTERNS) + PATTERNS.index(pattern)
    dice = Dice(stream("pairs", "test", seed, number))
    background = dice.pick(tuple(BACKGROUNDS))
    plan = _PLANS[pattern](dice, background)
    # each picture gets its ground from a fresh copy of one stream, so that the grounds are equal
    first, second = (
        compose(specs, background, size, "plain", Dice(stream("ground", "test", seed, number)))[0]
        for specs in (plan.first, plan.second)
    )
    if dice.chance(0.5):
        return MinimalPair(pattern, (first, second), plan.statements)
    return MinimalPair(pattern, (second, first), plan.statements[::-1])

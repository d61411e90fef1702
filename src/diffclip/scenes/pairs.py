"""Minimal pairs for the nine patterns of MMVP-VLM (Tong et al. 2024, arXiv:2401.06209; tsb0601/MMVP).

The two images of a pair differ in one thing; each statement fits its own image better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from diffclip.data.published_sets import PATTERNS
from diffclip.scenes.captions import NUMBERS, absent_attribute, describe_place, noun_phrase, plural
from diffclip.scenes.layout import Dice, Spec, choose_kind, make_generator, place, place_at_distance
from diffclip.scenes.scene import compose
from diffclip.scenes.vocabulary import (
    BACKGROUNDS,
    COLORS,
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

COLOR = frozenset({"color"})
_CORNERS = ((0.26, 0.26), (0.74, 0.26), (0.26, 0.74), (0.74, 0.74))
_SPOTS = (*_CORNERS, (0.5, 0.24), (0.5, 0.76), (0.24, 0.5), (0.76, 0.5))

Specs = Sequence[Spec]
PairPlan = tuple[Specs, Specs, str, str]
"""The objects of both images of a pair, and the statements about them."""


def minimal_pair(
    pattern: str, index: int, seed: int = 0, size: int = 64
) -> tuple[tuple[NDArray[np.uint8], NDArray[np.uint8]], tuple[str, str]]:
    """Draw pair number `index` of a pattern, the same for the same arguments.

    Returns:
        Two images (uint8 [H, W, 3]), and a statement for each, which fits it better than the other image. It may be
        true of both: an object at the top left is also at the top.

    Raises:
        InputError: a size outside 16 to 8192 pixels, or an index or seed out of range.
    """
    number = index * len(PATTERNS) + PATTERNS.index(pattern)
    dice = Dice(make_generator("pairs", "test", seed, number))
    background = dice.pick(tuple(BACKGROUNDS))
    *layouts, first_statement, second_statement = _PLANS[pattern](dice, background)
    # each image gets its background from a fresh copy of one stream, so that the backgrounds are equal
    first, second = (
        compose(specs, background, size, "plain", Dice(make_generator("ground", "test", seed, number)))[0]
        for specs in layouts
    )
    if dice.chance(0.5):
        return (first, second), (first_statement, second_statement)
    return (second, first), (second_statement, first_statement)


def _subject(dice: Dice, background: str, shapes: Sequence[str], detail: str | None = None) -> Spec:
    """Draw a large plain object that could carry `detail`."""
    while True:
        spec = choose_kind(dice, background, dice.pick(shapes))
        if detail is None or may_have(detail, spec.shape, spec.color, background):
            orientation = "up" if spec.orientation else None
            return replace(spec, size="large", texture="plain", orientation=orientation, detail=None)


def _two_kinds(dice: Dice, background: str) -> tuple[Spec, Spec]:
    """Draw two objects of different shapes and colors."""
    first = _subject(dice, background, SHAPES)
    while True:
        second = _subject(dice, background, [name for name in SHAPES if name != first.shape])
        if second.color != first.color:
            return first, second


def _arrange(subject: Spec, dice: Dice, background: str) -> list[Spec]:
    """Place `subject`, alone or with a small object of another shape and color, which is the same in both images."""
    extras = []
    if dice.chance(0.5):
        extra = choose_kind(dice, background, dice.pick([name for name in SHAPES if name != subject.shape]))
        if extra.color != subject.color:
            extras = [replace(extra, size="small", texture="plain", detail=None)]
    placed = place([subject, *extras], dice)
    return sorted(placed, key=lambda spec: spec.shape != subject.shape)


def _change(specs: Specs, **changes: str | float | None) -> list[Spec]:
    return [replace(specs[0], **changes), *specs[1:]]  # type: ignore[arg-type]


def _plan(first: Specs, second: Specs, attribute: str | None = None, absent: str | None = None) -> PairPlan:
    """Name the first object of each image by color, shape and `attribute`; in the second by `absent`, if given."""
    own, other = (COLOR | {name} if name else COLOR for name in (attribute, absent or attribute))
    return first, second, noun_phrase(first[:1], own), noun_phrase(second[:1], other)


def _with_and_without(details: dict[str, Detail], dice: Dice, background: str) -> PairPlan:
    """Show an object with one of `details`, and the same object without it."""
    name = dice.pick([name for name, entry in details.items() if background not in entry.not_on])
    specs = _arrange(_subject(dice, background, details[name].shapes, name), dice, background)
    return _plan(_change(specs, detail=name), specs, "detail", absent_attribute(name))


def _orientation(dice: Dice, background: str) -> PairPlan:
    specs = _arrange(_subject(dice, background, tuple(ORIENTATIONS)), dice, background)
    first, second = dice.shuffle(ORIENTATIONS[specs[0].shape])[:2]
    return _plan(_change(specs, orientation=first), _change(specs, orientation=second), "orientation")


def _presence(dice: Dice, background: str) -> PairPlan:
    if dice.chance(0.7):
        return _with_and_without(FEATURES, dice, background)
    subject, other = _two_kinds(dice, background)
    specs = place([subject, replace(other, size="medium")], dice)
    specs.sort(key=lambda spec: spec.shape != subject.shape)
    start, thing = noun_phrase([subject], COLOR), noun_phrase([other], COLOR)
    return specs, specs[:1], f"{start} with {thing} beside it", f"{start} with nothing beside it"


def _quantity(dice: Dice, background: str) -> PairPlan:
    subject = replace(_subject(dice, background, SHAPES), size=dice.pick(("small", "medium")))
    count = dice.pick((1, 2, 3))
    specs = place([subject] * (count + 1), dice)
    first_statement, second_statement = (
        f"{NUMBERS[number]} {subject.color} {subject.shape if number == 1 else plural(subject.shape)}"
        for number in (count, count + 1)
    )
    return specs[:count], specs, first_statement, second_statement


def _position(dice: Dice, background: str) -> PairPlan:
    if dice.chance(0.5):
        subject = replace(_subject(dice, background, SHAPES), size="medium")
        here, there = (replace(subject, x=x, y=y) for x, y in dice.shuffle(_SPOTS)[:2])
        start = noun_phrase([subject], COLOR)
        return [here], [there], f"{start} {describe_place(here)}", f"{start} {describe_place(there)}"
    kinds = _two_kinds(dice, background)
    spec, other = (replace(kind, size="medium", radius=SIZES["medium"]) for kind in kinds)
    drift = dice.between(0.42, 0.58)
    a, b = noun_phrase([spec], COLOR), noun_phrase([other], COLOR)
    ends = ((0.27, 0.73), (0.73, 0.27))
    if dice.chance(0.5):
        first, second = ([replace(spec, x=x, y=drift), replace(other, x=far, y=drift)] for x, far in ends)
        return first, second, f"{a} to the left of {b}", f"{a} to the right of {b}"
    first, second = ([replace(spec, x=drift, y=y), replace(other, x=drift, y=far)] for y, far in ends)
    return first, second, f"{a} above {b}", f"{a} below {b}"


def _color(dice: Dice, background: str) -> PairPlan:
    specs = _arrange(_subject(dice, background, SHAPES), dice, background)
    if dice.chance(0.65):
        taken = {spec.color for spec in specs} | set(BACKGROUNDS[background].hides)
        color = dice.pick([name for name in COLORS if name not in taken])
        return _plan(specs, _change(specs, color=color))
    first, second = dice.shuffle(TEXTURES)[:2]
    return _plan(_change(specs, texture=first), _change(specs, texture=second), "texture")


def _text(dice: Dice, background: str) -> PairPlan:
    kind, texts = dice.pick((("letter", LETTERS), ("word", WORDS)))
    detail, other_detail = (f"{kind} {text}" for text in dice.shuffle(texts)[:2])
    subject = _subject(dice, background, DETAILS[detail].shapes)
    specs = _change(_arrange(subject, dice, background), tilt=0.0, detail=detail)
    return _plan(specs, _change(specs, detail=other_detail), "detail")


def _viewpoint(dice: Dice, background: str) -> PairPlan:
    if dice.chance(0.5):
        return _with_and_without(VIEWS, dice, background)
    near = place_at_distance(_subject(dice, background, SHAPES), "near", dice)
    far = replace(near, detail="far", size="small", radius=DISTANCES["far"][2])
    return _plan([near], [far], "detail")


_state, _structure = partial(_with_and_without, STATES), partial(_with_and_without, STRUCTURES)
_PLANNERS = (_orientation, _presence, _state, _quantity, _position, _color, _structure, _text, _viewpoint)
_PLANS: dict[str, Callable[[Dice, str], PairPlan]] = dict(zip(PATTERNS, _PLANNERS, strict=True))

"""The objects of a scene and their places, drawn from a random stream before anything is painted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from diffclip.errors import InputError, unknown_name
from diffclip.scenes.shapes import FORMS, TURN, extent
from diffclip.scenes.vocabulary import (
    BACKGROUNDS,
    COLORS,
    COMMON_DETAILS,
    DISTANCES,
    DISTRACTORS,
    ORIENTATIONS,
    SHAPES,
    SIZES,
    TEXTURES,
    may_have,
)

STREAMS = {"scene": 0, "pairs": 1, "ground": 2, "questions": 3, "distractors": 4}
SPLITS = {"train": 0, "val": 1, "test": 2}
_LARGEST = 2**32 - 1
_DETAIL_SHARE, _REPEAT_SHARE, _DISTANCE_SHARE = 0.2, 0.4, 0.1
_DISTRACTOR_RADII = 0.05, 0.08
_GAP = 0.03  # clear space between two objects, as a share of the image's edge
T = TypeVar("T")


@dataclass(frozen=True)
class Spec:
    """One object before it is painted. Lengths are shares of the image's edge, `tilt` is in radians."""

    shape: str
    color: str
    size: str = "medium"
    texture: str = "plain"
    orientation: str | None = None
    detail: str | None = None
    x: float = 0.5
    y: float = 0.5
    radius: float = 0.148
    tilt: float = 0.0

    @property
    def form(self) -> str:
        """The entry of `shapes.FORMS` that draws this object."""
        special = f"{self.shape}, {self.detail}"
        return special if special in FORMS else self.shape

    @property
    def angle(self) -> float:
        """Clockwise turn in radians."""
        return TURN[self.orientation or "up"] + self.tilt

    @property
    def reach(self) -> float:
        """Radius of the circle around all of the object, as a share of the image's edge."""
        return self.radius * extent(self.form)


def make_generator(name: str, split: str, seed: int, index: int) -> np.random.Generator:
    """Make the random generator of one purpose (`name`) for one image; it depends on these arguments alone.

    Raises:
        InputError: an unknown split, or a seed or index outside 0 … 2³²−1.
    """
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    for label, value in (("seed", seed), ("index", index)):
        if not 0 <= value <= _LARGEST:
            raise InputError(f"{label} {value} is out of range: give a whole number from 0 to {_LARGEST}")
    purpose = (STREAMS[name] << 8 | SPLITS[split]) << 32 | index
    return np.random.Generator(np.random.Philox(key=np.array([seed, purpose], np.uint64)))


class Dice:
    """Cheap draws from a random stream: numpy's own scalar draws would cost more than the painting."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._pool: list[float] = []

    def random(self) -> float:
        if not self._pool:
            self._pool = self._rng.random(64).tolist()
        return self._pool.pop()

    def chance(self, share: float) -> bool:
        return self.random() < share

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.random()

    def grain(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Standard normal noise."""
        return self._rng.standard_normal(shape, dtype=np.float32)

    def shuffle(self, items: Sequence[T]) -> list[T]:
        items = list(items)
        for last in range(len(items) - 1, 0, -1):
            other = int(self.random() * (last + 1))
            items[last], items[other] = items[other], items[last]
        return items


def choose_kind(dice: Dice, background: str, shape: str | None = None) -> Spec:
    """Draw a shape, color, size, texture, orientation and perhaps a detail that show well on `background`."""
    shape = shape or dice.pick(SHAPES)
    color = dice.pick([name for name in COLORS if name not in BACKGROUNDS[background].hides])
    size = dice.pick(tuple(SIZES))
    detail, texture = None, "plain"
    if size != "small":  # patterns and details need room to be seen
        if dice.chance(_DETAIL_SHARE):
            detail = _choose_detail(dice, shape, color, background)
        if detail is None and dice.chance(0.6):
            texture = dice.pick(TEXTURES[1:])
    orientation = dice.pick(ORIENTATIONS[shape]) if shape in ORIENTATIONS else None
    return Spec(shape, color, size, texture, orientation, detail)


def _choose_detail(dice: Dice, shape: str, color: str, background: str) -> str | None:
    """Draw a detail that can be seen here, if any; all letters together are as likely as any other detail."""
    options = [name for name in COMMON_DETAILS if may_have(name, shape, color, background)]
    families = sorted({name.split()[0] for name in options})
    if not families:
        return None
    family = dice.pick(families)
    return dice.pick([name for name in options if name.split()[0] == family])


def _choose_all(dice: Dice, count: int, background: str, shape: str | None) -> list[Spec]:
    specs = [choose_kind(dice, background, shape)]
    while len(specs) < count:
        if dice.chance(_REPEAT_SHARE):
            twin = specs[-1]
            if twin.detail is not None or dice.chance(0.3):
                variant = choose_kind(dice, background, twin.shape)
                twin = replace(variant, color=twin.color, detail=None)
            specs.append(twin)
        else:
            specs.append(choose_kind(dice, background))
    return specs


def randomize_size(spec: Spec, dice: Dice) -> Spec:
    """Give `spec` a random radius within its size and a slight tilt, as if it was placed by hand."""
    return replace(spec, radius=SIZES[spec.size] * dice.between(0.95, 1.05), tilt=dice.between(-0.09, 0.09))


def place_at_distance(spec: Spec, distance: str, dice: Dice) -> Spec:
    """Put `spec` near the middle, seen from close up or from far away."""
    _detail, size, radius = DISTANCES[distance]
    x, y = dice.between(0.47, 0.53), dice.between(0.47, 0.53)
    tilt = dice.between(-0.05, 0.05)
    return replace(spec, size=size, texture="plain", detail=distance, radius=radius, x=x, y=y, tilt=tilt)


def place(specs: list[Spec], dice: Dice) -> list[Spec]:
    """Give each object its radius and a place apart from the others; an object that fits nowhere gets smaller."""
    specs = [randomize_size(spec, dice) for spec in specs]
    for _attempt in range(200):
        placed: list[Spec] = []
        for spec in sorted(specs, key=lambda spec: -spec.radius):
            spot = find_spot(spec.reach, placed, dice)
            if spot is None:
                break
            placed.append(replace(spec, x=spot[0], y=spot[1]))
        if len(placed) == len(specs):
            return dice.shuffle(placed)
        specs = _shrink_one(specs, dice)
    raise AssertionError("small objects always fit")


def find_spot(reach: float, placed: Sequence[Spec], dice: Dice) -> tuple[float, float] | None:
    """Find a center for an object of this reach, apart from the objects that are placed; None after 30 tries."""
    low, room = reach + 0.02, 0.96 - 2 * reach
    taken = [(other.x, other.y, (reach + (other.reach + _GAP)) ** 2) for other in placed]
    for _try in range(30):
        x, y = low + room * dice.random(), low + room * dice.random()
        if all((x - other_x) ** 2 + (y - other_y) ** 2 >= apart for other_x, other_y, apart in taken):
            return x, y
    return None


def scatter(count: int, specs: Sequence[Spec], dice: Dice) -> list[Spec]:
    """Place `count` small distractors of shapes that no caption names; they overlap others only if no spot is found."""
    placed = list(specs)
    for _ in range(count):
        radius = dice.between(*_DISTRACTOR_RADII)
        shape, color = dice.pick(DISTRACTORS), dice.pick(tuple(COLORS))
        spec = Spec(shape, color, radius=radius, tilt=dice.between(0, 6.28))
        low = spec.reach + 0.02
        x, y = find_spot(spec.reach, placed, dice) or (dice.between(low, 1 - low), dice.between(low, 1 - low))
        placed.append(replace(spec, x=x, y=y))
    return placed[len(specs) :]


def _shrink_one(specs: list[Spec], dice: Dice) -> list[Spec]:
    largest = max(range(len(specs)), key=lambda i: specs[i].radius)
    spec = specs[largest]
    if spec.size == "large":
        smaller = replace(spec, size="medium")
    else:
        smaller = replace(spec, size="small", texture="plain", detail=None)
    return [*specs[:largest], randomize_size(smaller, dice), *specs[largest + 1 :]]


def lay_out(dice: Dice, objects: int | None, shape: str | None) -> tuple[str, list[Spec]]:
    """Draw a background's name and one to four placed objects; `shape` fixes the shape of the first one drawn."""
    background = dice.pick(tuple(BACKGROUNDS))
    count = objects or dice.pick((1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 4))
    specs = _choose_all(dice, count, background, shape)
    if count == 1 and dice.chance(_DISTANCE_SHARE):
        return background, [place_at_distance(specs[0], dice.pick(tuple(DISTANCES)), dice)]
    return background, place(specs, dice)

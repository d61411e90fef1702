"""The words of the built-in set: shapes, colors, sizes, textures, backgrounds, details and prompts."""

from __future__ import annotations

from typing import NamedTuple

# fmt: off
SHAPES = (
    "circle", "square", "triangle", "diamond", "star", "heart",
    "ring", "cross", "crescent", "arrow", "flower", "teardrop",
)
DISTRACTORS = ("bar", "hook", "zigzag")  # shapes of the distractors, which no caption and no prompt names

COLORS: dict[str, tuple[int, int, int]] = {
    "red": (214, 44, 48), "orange": (242, 132, 30), "yellow": (250, 212, 50), "green": (48, 150, 66),
    "turquoise": (44, 196, 192), "blue": (46, 92, 214), "purple": (128, 62, 178), "pink": (246, 138, 182),
    "brown": (124, 76, 44), "black": (36, 36, 42), "white": (250, 250, 247),
}
SIZES: dict[str, float] = {"small": 0.10, "medium": 0.148, "large": 0.205}
"""Nominal radius as a share of the image's edge; drawn radii vary by 5 %, so the three ranges never overlap."""
TEXTURES = ("plain", "striped", "dotted", "checked")

_DIRECTIONS = ("up", "right", "down", "left")
ORIENTATIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("triangle", "crescent", "arrow", "teardrop"), _DIRECTIONS), "heart": ("up", "down"),
}
"""Shapes that have a direction, and the directions they are drawn in."""


class Background(NamedTuple):
    """The phrases for a background, and the object colors that it hides."""

    phrases: tuple[str, ...]
    hides: tuple[str, ...]


BACKGROUNDS: dict[str, Background] = {
    "paper": Background(("on paper", "on squared paper"), ("white", "yellow")),
    "sand": Background(("on sand", "on a sandy beach"), ("yellow", "white", "orange")),
    "grass": Background(("on grass", "on a meadow"), ("green",)),
    "sky": Background(("in the sky", "against a cloudy sky"), ("white", "turquoise")),
    "wood": Background(("on wood", "on a wooden table"), ("brown", "orange")),
    "night": Background(("at night", "in the night sky"), ("black", "blue", "purple", "brown")),
    "stone": Background(("on stone", "on a stone wall"), ()),
}


class Detail(NamedTuple):
    """A special feature of one object, such as a face or a gap.

    `before` stands before the color, `after` behind the noun; `without` has the same two for an object that lacks the
    detail. The detail could not be seen on an object of a color in `hides`, or on a background in `not_on`.
    """

    shapes: tuple[str, ...]
    before: str = ""
    after: str = ""
    without: tuple[str, str] = ("", "")
    hides: tuple[str, ...] = ()
    not_on: tuple[str, ...] = ()


LETTERS = ("A", "B", "C", "E", "H", "K", "L", "M", "O", "R", "S", "T", "X", "Z")
WORDS = ("GO", "NO", "UP", "ON", "HI", "IN", "OK", "BY", "WE", "ME")

FEATURES: dict[str, Detail] = {
    # a circle with a pale spot would look like a ring
    "spot": Detail(("square", "star", "diamond", "heart"), "", "with a spot in its middle", ("", "without a spot")),
    "face": Detail(("circle", "square", "heart"), "", "with a smiling face", ("", "without a face"), ("black",)),
    "border": Detail(("circle", "square", "heart", "diamond"), "", "with a thick border", ("", "without a border"),
                     ("black", "brown"), ("night",)),
}
STATES: dict[str, Detail] = {
    "glowing": Detail(("circle", "star", "heart", "diamond"), "glowing", "", ("", "that does not glow"),
                      ("black", "brown"), ("paper", "sand")),
    "hollow": Detail(("square", "star", "heart", "diamond"), "hollow", "", ("solid", "")),
    "half-filled": Detail(("circle", "square", "heart"), "half-filled", "", ("completely filled", ""), ("white",)),
    "cracked": Detail(("circle", "square", "heart", "star"), "cracked", "", ("unbroken", "")),
    "gap": Detail(("ring",), "", "with a gap", ("closed", "")),
}
STRUCTURES: dict[str, Detail] = {
    "four points": Detail(("star",), "", "with four points", ("", "with five points")),
    "eight points": Detail(("star",), "", "with eight points", ("", "with five points")),
    "four petals": Detail(("flower",), "", "with four petals", ("", "with six petals")),
    "rounded corners": Detail(("square",), "", "with rounded corners", ("", "with sharp corners")),
    "thin": Detail(("ring", "cross"), "thin", "", ("thick", "")),
}
VIEWS: dict[str, Detail] = {
    "side": Detail(("circle", "square", "ring"), "", "seen from the side", ("", "seen from the front")),
}
DISTANCES: dict[str, tuple[Detail, str, float]] = {
    "near": (Detail(SHAPES, after="seen from close up"), "large", 0.39),
    "far": (Detail(SHAPES, after="seen from far away"), "small", 0.072),
}
"""Details of a lone object that set its size and radius too."""
TEXTS: dict[str, Detail] = {
    **{f"letter {text}": Detail(("circle", "square"), "", f"with the letter {text} on it") for text in LETTERS},
    **{f"word {text}": Detail(("square",), "", f"with the word {text} on it") for text in WORDS},
}
# fmt: on

COMMON_DETAILS: dict[str, Detail] = {**FEATURES, **STATES, **STRUCTURES, **VIEWS, **TEXTS}
"""Details that any medium or large object of a fitting shape may have."""
DETAILS: dict[str, Detail] = COMMON_DETAILS | {name: entry[0] for name, entry in DISTANCES.items()}

TEMPLATES = (
    "a single {c}",
    "one {c}",
    "a picture of one {c}",
    *(f"a {word} {{c}}" for word in ("small", "medium-sized", "large", *TEXTURES)),
    *(f"a {color} {{c}}" for color in COLORS if color != "orange"),
)
"""Zero-shot prompts in the words of the captions. "a" never stands directly before the name, so every name fits."""
COUNTS = (2, 3, 4)  # numbers of objects that captions state
COUNT_TEMPLATES = ("{c} objects", "{c} shapes")  # zero-shot prompts for numbers, in the captions' words
COLOR_TEMPLATES = tuple(f"a single {{c}} {shape}" for shape in SHAPES)
"""Zero-shot prompts for colors, one per shape."""


def may_have(detail: str, shape: str, color: str, background: str) -> bool:
    """Return whether `detail` can be seen on such an object on such a background."""
    entry = DETAILS[detail]
    return shape in entry.shapes and color not in entry.hides and background not in entry.not_on

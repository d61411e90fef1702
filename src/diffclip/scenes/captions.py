"""Captions of a scene: several true sentences that differ in what they mention and how.

A phrase always names exactly the objects it counts: "a red star" is written only if the scene has exactly one.
"""

from __future__ import annotations

from collections.abc import Sequence

from diffclip.scenes.layout import Dice, Spec
from diffclip.scenes.vocabulary import BACKGROUNDS, COMMON_DETAILS, DETAILS

CAPTIONS = 5  # captions per image, as in Flickr8k and COCO

_TITLES = ("a picture of ", "a drawing of ", "a picture with ")
_SENTENCES = ("there is ", "there are ")
_BEFORE = ("size", "texture")
_EXTRAS = ("size", "texture", "orientation", "detail")
_LOOKS = ("texture", "detail")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
_PLURALS = {"cross": "crosses"}
_STANDING = {"up": "upright", "down": "upside-down"}
_OPENING = {"up": "upwards", "down": "downwards", "left": "to the left", "right": "to the right"}

_EDGE = 0.36  # an object nearer to an edge than this share of the image is on that side
_MIDDLE = (0.42, 0.58)  # the range of the middle; between edge and middle no place is named


def write_captions(specs: Sequence[Spec], background: str, dice: Dice, look: bool = True) -> tuple[str, ...]:
    """Write CAPTIONS different captions. If `look` is False, they name no color, texture or background, and
    a detail only of a single object."""
    writer = _Writer(specs, background, dice, look)
    captions: list[str] = []
    phrases: set[str] = set()
    for attempt in range(200):
        caption = writer.caption(loose=attempt == 0)
        # skip captions that differ only in their title; accept them after 40 attempts: a bare scene has no others
        if caption in captions or (attempt < 40 and _unframed(caption) in phrases):
            continue
        captions.append(caption)
        phrases.add(_unframed(caption))
        if len(captions) == CAPTIONS:
            break
    return tuple(dice.shuffle(captions))


def _unframed(caption: str) -> str:
    for frame in (*_TITLES, *_SENTENCES):
        caption = caption.removeprefix(frame)
    return caption


class _Writer:
    def __init__(self, specs: Sequence[Spec], background: str, dice: Dice, look: bool) -> None:
        self.specs, self.background, self.dice, self.look = list(specs), background, dice, look
        groups: dict[tuple[str, str], list[Spec]] = {}
        for spec in specs:
            groups.setdefault((spec.shape, spec.color if look else ""), []).append(spec)
        self.groups = list(groups.values())
        self.base = frozenset({"color"}) if look else frozenset[str]()

    def caption(self, loose: bool) -> str:
        if len(self.specs) == 1:
            return self.single(loose)
        forms = [self.listing, self.listing, self.places, self.related, self.counted]
        return self.dice.pick(forms)() or self.listing()

    def allowed(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if self.look or name not in _LOOKS]

    def extras(self, group: Sequence[Spec], names: Sequence[str], share: float) -> frozenset[str]:
        """Choose the attributes to mention besides color and shape: a random part of those that all members share."""
        shared = [name for name in self.allowed(names) if len({getattr(spec, name) for spec in group}) == 1]
        attributes = {name for name in shared if self.dice.chance(share)}
        if any(spec.detail for spec in group) or (group[0].texture == "plain" and self.dice.chance(0.6)):
            attributes.discard("texture")
        if group[0].size == "medium" and self.dice.chance(0.4):
            attributes.discard("size")
        if self.look and "detail" in names and len(group) == 1 and self.dice.chance(0.12):
            attributes |= self.usual(group[0])
        return self.base | attributes

    def usual(self, spec: Spec) -> set[str]:
        """Choose one detail that a plain object could have but lacks ("no face"); the empty set if there is none."""
        if spec.texture != "plain" or spec.detail is not None:
            return set()
        details = COMMON_DETAILS.items()
        absent = [name for name, entry in details if spec.shape in entry.shapes and any(entry.without)]
        return {absent_attribute(self.dice.pick(absent))} if absent else set()

    def ground(self, share: float) -> str:
        if not self.look or not self.dice.chance(share):
            return ""
        return " " + self.dice.pick(BACKGROUNDS[self.background].phrases)

    def framed(self, text: str, alone: Sequence[Spec] = ()) -> str:
        """Put a title or nothing before the phrase, or "there is/are" if the phrase is about the group `alone`."""
        frames = ["", "", "", *_TITLES]
        if alone:
            frames += [_SENTENCES[len(alone) > 1]] * 2
        return self.dice.pick(frames) + text

    def single(self, loose: bool) -> str:
        spec = self.specs[0]
        if loose:
            determiner = self.dice.pick(("a single", "one", "just one"))
            return noun_phrase([spec], self.extras([spec], ("detail",), 0.5), determiner) + self.ground(0.5)
        place = describe_place(spec)
        ground = self.ground(0.55)
        attributes = self.extras([spec], _EXTRAS, 0.6)
        if place is not None and self.dice.chance(0.65):
            if self.dice.chance(0.2):
                return f"{place} there is {noun_phrase([spec], attributes)}{ground}"
            return self.framed(f"{noun_phrase([spec], attributes)} {place}{ground}", [spec])
        if not ground or spec.detail is not None:
            attributes |= self.extras([spec], ("size", "texture", "orientation"), 1.0) | {"detail"}
        return self.framed(noun_phrase([spec], attributes) + ground, [spec])

    def parts(self, share: float, names: Sequence[str] = _EXTRAS) -> list[str]:
        """Write phrases that name every object; a group gets one phrase, or one phrase per object."""
        parts = []
        for group in self.dice.shuffle(self.groups):
            for piece, attributes in self.split(group, share, names):
                text = noun_phrase(piece, attributes)
                parts.append((text, text.endswith((piece[0].shape, plural(piece[0].shape)))))
        # phrases that do not end in their noun go first: in "a star and an arrow pointing left" both could point left
        return [text for text, _ in sorted(parts, key=lambda part: part[1])]

    def split(
        self, group: list[Spec], share: float, names: Sequence[str]
    ) -> list[tuple[list[Spec], frozenset[str]]]:
        """Keep a group together ("two red stars"), or split it by an attribute ("a small red star")."""
        if len(group) > 1 and self.dice.chance(0.6):
            for name in self.dice.shuffle(self.allowed(names)):
                differ = len({getattr(spec, name) for spec in group}) == len(group)
                unclear = name == "texture" and any(spec.detail is not None for spec in group)
                if name != "detail" and differ and not unclear:
                    return [([spec], frozenset({name}) | self.base) for spec in group]
        return [(group, self.extras(group, names, share))]

    def listing(self) -> str:
        parts = self.parts(0.5 if len(self.groups) <= 2 else 0.25)
        ground = self.ground(0.4)
        if ground and self.dice.chance(0.25):
            return f"{ground.strip()}, {join(parts)}"
        return self.framed(join(parts) + ground, self.groups[0] if len(parts) == 1 else ())

    def places(self) -> str | None:
        """Say where each group is, None if no place is clear. Groups without a place come last or are left out."""
        placed, rest = [], []
        for group in self.dice.shuffle(self.groups):
            shared = {describe_place(spec) for spec in group}
            place = shared.pop() if len(shared) == 1 else None
            phrase = noun_phrase(group, self.extras(group, _BEFORE, 0.3))
            if place is None:
                rest.append(phrase)
            else:
                placed.append(f"{phrase} {place}")
        if not placed:
            return None
        if rest and len(placed) > 1 and self.dice.chance(0.5):
            rest = []
        return self.framed(join(placed + rest) + ("" if rest else self.ground(0.2)))

    def related(self) -> str | None:
        """Name two objects, each the only one of its kind, and say where the first is relative to the second."""
        kinds = [group[0] for group in self.groups if len(group) == 1]
        pairs = [(a, b, words) for a in kinds for b in kinds if a is not b and (words := relation(a, b))]
        if not pairs:
            return None
        a, b, words = self.dice.pick(pairs)
        share = 0.5 if len(self.groups) == 2 else 0.3
        first, second = (noun_phrase([spec], self.extras([spec], _BEFORE, share)) for spec in (a, b))
        return self.framed(f"{first} {words} {second}{self.ground(0.3)}")

    def counted(self) -> str:
        """Say how many objects there are, and list them."""
        total = NUMBERS[len(self.specs)]
        shapes = {spec.shape for spec in self.specs}
        colors = {spec.color for spec in self.specs}
        if self.look and len(shapes) == 1 and len(colors) > 1:
            noun = plural(self.specs[0].shape)
            counts = join([f"{NUMBERS[len(group)]} {group[0].color}" for group in self.groups])
            return f"{total} {noun}{self.ground(0.4)}, {counts}"
        if self.look and len(colors) == 1 and len(shapes) > 1:
            parts = join([noun_phrase(group, frozenset()) for group in self.groups])
            return f"{total} {self.specs[0].color} shapes{self.ground(0.4)}: {parts}"
        if len(self.groups) == 1:
            group = self.groups[0]
            return self.framed(noun_phrase(group, self.extras(group, _EXTRAS, 0.7)) + self.ground(0.5))
        noun = self.dice.pick(("shapes", "objects"))
        parts = join(self.parts(0.15, _BEFORE))
        return f"{total} {noun}{self.ground(0.4)}: {parts}"


def plural(noun: str) -> str:
    return _PLURALS.get(noun, noun + "s")


def with_article(words: str) -> str:
    """Put "a" or "an" before a phrase, by its first letter: no word of the vocabulary is an exception."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def join(items: Sequence[str]) -> str:
    """List in English: a, b and c."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def absent_attribute(detail: str) -> str:
    """Return the name of the attribute for the absence of `detail`."""
    return f"no {detail}"


def noun_phrase(group: Sequence[Spec], attributes: frozenset[str], determiner: str | None = None) -> str:
    """Name one or several objects that agree in all `attributes`: "a small red star", "two stars pointing up"."""
    spec, count = group[0], len(group)
    before, behind = _words_around_noun(spec, attributes)
    words = [*before, spec.shape if count == 1 else plural(spec.shape), *behind]
    text = " ".join(word for word in words if word)
    if count > 1:
        return f"{NUMBERS[count]} {text}"
    return with_article(text) if determiner is None else f"{determiner} {text}"


def _words_around_noun(spec: Spec, attributes: frozenset[str]) -> tuple[list[str], list[str]]:
    absent = sorted(name for name in attributes if name.startswith("no "))
    details = [DETAILS[name.removeprefix("no ")].without for name in absent]
    if "detail" in attributes and spec.detail is not None:
        details.insert(0, (DETAILS[spec.detail].before, DETAILS[spec.detail].after))
    direction = _direction(spec) if "orientation" in attributes else ("", "")
    before = [
        ("medium-sized" if spec.size == "medium" else spec.size) if "size" in attributes else "",
        spec.texture if "texture" in attributes else "",
        *(words[0] for words in details),
        direction[0],
        spec.color if "color" in attributes else "",
    ]
    return before, [direction[1], *(words[1] for words in details)]


def _direction(spec: Spec) -> tuple[str, str]:
    """Return the words for the direction of `spec`: those before the noun and those behind it."""
    if spec.orientation is None:
        return "", ""
    if spec.shape == "heart":
        return _STANDING[spec.orientation], ""
    if spec.shape == "crescent":
        return "", f"opening {_OPENING[spec.orientation]}"
    return "", f"pointing {spec.orientation}"


def describe_place(spec: Spec) -> str | None:
    """Say where an object is in the image, "at the top left" or "on the right"; None if it is not clear."""
    across = "left" if spec.x < _EDGE else "right" if spec.x > 1 - _EDGE else ""
    down = "top" if spec.y < _EDGE else "bottom" if spec.y > 1 - _EDGE else ""
    if down:
        return f"at the {down} {across}".rstrip()
    if across:
        return f"on the {across}"
    low, high = _MIDDLE
    return "in the middle" if low < spec.x < high and low < spec.y < high else None


def relation(a: Spec, b: Spec) -> str | None:
    """Say where `a` is relative to `b`, such as "above"; None if it is not clear."""
    right, down = b.x - a.x, b.y - a.y
    reach = 0.5 * (a.radius + b.radius)
    if abs(right) > max(0.22, 2 * abs(down), reach):
        return "to the left of" if right > 0 else "to the right of"
    if abs(down) > max(0.22, 2 * abs(right), reach):
        return "above" if down > 0 else "below"
    return None

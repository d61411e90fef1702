"""Grammar of the captions: noun phrases, lists, places and relations, each true of what it is given."""

from __future__ import annotations

from collections.abc import Sequence

from diffclip.scenes.layout import Spec
from diffclip.scenes.vocabulary import DETAILS

NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
_PLURALS = {"cross": "crosses"}
_POINTING = {"up": "pointing up", "right": "pointing right", "down": "pointing down", "left": "pointing left"}
_OPENING = {
    "up": "opening upwards",
    "right": "opening to the right",
    "down": "opening downwards",
    "left": "opening to the left",
}
_STANDING = {"up": "upright", "down": "upside-down"}

EDGE = 0.36
"""Nearer to an edge than this share is on that side; what is neither there nor in the middle goes unsaid."""
_MIDDLE = (0.42, 0.58)


def plural(noun: str) -> str:
    return _PLURALS.get(noun, noun + "s")


def with_article(words: str) -> str:
    """The phrase behind "a" or "an", by its first sound (no word of the vocabulary breaks the vowel rule)."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def join(items: Sequence[str]) -> str:
    """A list in English: a, b and c."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def orientation_words(spec: Spec) -> tuple[str, str]:
    """What stands before and behind the noun to say where `spec` points."""
    if spec.orientation is None:
        return "", ""
    if spec.shape == "heart":
        return _STANDING[spec.orientation], ""
    if spec.shape == "crescent":
        return "", _OPENING[spec.orientation]
    return "", _POINTING[spec.orientation]


def lacking(detail: str) -> str:
    """What to put among the attributes said, to say that an object lacks `detail`."""
    return f"no {detail}"


def _lacking(said: frozenset[str]) -> list[str]:
    return sorted(name.removeprefix("no ") for name in said if name.startswith("no "))


def before(spec: Spec, said: frozenset[str]) -> str:
    """All that stands before the noun: size, texture, detail, direction of a heart, colour."""
    words = []
    if "size" in said:
        words.append("medium-sized" if spec.size == "medium" else spec.size)
    if "texture" in said:
        words.append(spec.texture)
    if "detail" in said and spec.detail is not None:
        words.append(DETAILS[spec.detail].before)
    words.extend(DETAILS[name].without[0] for name in _lacking(said))
    if "orientation" in said:
        words.append(orientation_words(spec)[0])
    if "colour" in said:
        words.append(spec.colour)
    return "".join(f"{word} " for word in words if word)


def behind(spec: Spec, said: frozenset[str]) -> str:
    """All that stands behind the noun: direction and detail."""
    words = []
    if "orientation" in said:
        words.append(orientation_words(spec)[1])
    if "detail" in said and spec.detail is not None:
        words.append(DETAILS[spec.detail].after)
    words.extend(DETAILS[name].without[1] for name in _lacking(said))
    return "".join(f" {word}" for word in words if word)


def noun_phrase(group: Sequence[Spec], said: frozenset[str], determiner: str | None = None) -> str:
    """One or several objects that agree in everything `said`: "a small red star", "two stars pointing up"."""
    spec, count = group[0], len(group)
    start, end = before(spec, said), behind(spec, said)
    if count > 1:
        return f"{NUMBERS[count]} {start}{plural(spec.shape)}{end}"
    if determiner is not None:
        return f"{determiner} {start}{spec.shape}{end}"
    return with_article(f"{start}{spec.shape}{end}")


def shared(group: Sequence[Spec], attributes: Sequence[str]) -> list[str]:
    """Those of `attributes`, in order, on which the whole group agrees: one phrase can say them of all."""
    first = group[0]
    return [name for name in attributes if all(getattr(spec, name) == getattr(first, name) for spec in group)]


def place_of(spec: Spec) -> str | None:
    """Where an object is in the picture, or None when it is not clear: "at the top left", "on the right"."""
    across = "left" if spec.x < EDGE else "right" if spec.x > 1 - EDGE else ""
    down = "top" if spec.y < EDGE else "bottom" if spec.y > 1 - EDGE else ""
    if across and down:
        return f"at the {down} {across}"
    if down:
        return f"at the {down}"
    if across:
        return f"on the {across}"
    low, high = _MIDDLE
    return "in the middle" if low < spec.x < high and low < spec.y < high else None


def place_of_all(group: Sequence[Spec]) -> str | None:
    """The place that all of a group share, or None."""
    places = {place_of(spec) for spec in group}
    return places.pop() if len(places) == 1 else None


def relation(a: Spec, b: Spec) -> str | None:
    """How `a` lies to `b` where nobody would doubt it, or None."""
    right, down = b.x - a.x, b.y - a.y
    reach = 0.5 * (a.radius + b.radius)
    if abs(right) > max(0.22, 2 * abs(down), reach):
        return "to the left of" if right > 0 else "to the right of"
    if abs(down) > max(0.22, 2 * abs(right), reach):
        return "above" if down > 0 else "below"
    return None

"""Grammar of the captions: noun phrases, lists, places and relations, each true of the objects that it is given."""

from __future__ import annotations

from collections.abc import Sequence

from diffclip.scenes.layout import Spec
from diffclip.scenes.vocabulary import DETAILS

NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
_PLURALS = {"cross": "crosses"}
_STANDING = {"up": "upright", "down": "upside-down"}
_OPENING = {"up": "upwards", "down": "downwards", "left": "to the left", "right": "to the right"}

_EDGE = 0.36  # nearer to an edge than this share is on that side
_MIDDLE = (0.42, 0.58)  # between edge and middle no place is named


def plural(noun: str) -> str:
    return _PLURALS.get(noun, noun + "s")


def with_article(words: str) -> str:
    """Write "a" or "an" before a phrase, by its first sound (no word of the vocabulary breaks the vowel rule)."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def join(items: Sequence[str]) -> str:
    """List in English: a, b and c."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def lacking(detail: str) -> str:
    """Name the attribute that an object lacks `detail`."""
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
    details = [
        DETAILS[name.removeprefix("no ")].without for name in sorted(attributes) if name.startswith("no ")
    ]
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
    """Say before or behind the noun where `spec` points."""
    if spec.orientation is None:
        return "", ""
    if spec.shape == "heart":
        return _STANDING[spec.orientation], ""
    if spec.shape == "crescent":
        return "", f"opening {_OPENING[spec.orientation]}"
    return "", f"pointing {spec.orientation}"


def shared(group: Sequence[Spec], attributes: Sequence[str]) -> list[str]:
    """List those of `attributes`, in order, on which the whole group agrees: one phrase can say them of all."""
    first = group[0]
    return [name for name in attributes if all(getattr(spec, name) == getattr(first, name) for spec in group)]


def place_of(spec: Spec) -> str | None:
    """Say where an object is in the image, "at the top left" or "on the right"; None if it is not clear."""
    across = "left" if spec.x < _EDGE else "right" if spec.x > 1 - _EDGE else ""
    down = "top" if spec.y < _EDGE else "bottom" if spec.y > 1 - _EDGE else ""
    if down:
        return f"at the {down} {across}".rstrip()
    if across:
        return f"on the {across}"
    low, high = _MIDDLE
    return "in the middle" if low < spec.x < high and low < spec.y < high else None


def place_of_all(group: Sequence[Spec]) -> str | None:
    """Say the place that all of a group share; None if they do not."""
    places = {place_of(spec) for spec in group}
    return places.pop() if len(places) == 1 else None


def relation(a: Spec, b: Spec) -> str | None:
    """Say how `a` lies to `b` where nobody would doubt it, else None."""
    right, down = b.x - a.x, b.y - a.y
    reach = 0.5 * (a.radius + b.radius)
    if abs(right) > max(0.22, 2 * abs(down), reach):
        return "to the left of" if right > 0 else "to the right of"
    if abs(down) > max(0.22, 2 * abs(right), reach):
        return "above" if down > 0 else "below"
    return None

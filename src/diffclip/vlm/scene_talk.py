"""Questions and answers about one scene, as a language model is taught them: in words alone, or with the picture.

No answer follows from the earlier ones of its conversation. Whether a yes/no question is to be answered yes is a coin
flip for each, and there are at most as many as the picture has of what is asked for, so that a yes is always possible.
With a fixed number of yes, or with more questions, later answers could be told from earlier ones, and a model would
learn to count instead of to look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar, get_args

from diffclip.scenes.layout import Dice, Spec
from diffclip.scenes.phrases import NUMBERS, join, noun_phrase, with_article
from diffclip.scenes.questions import (
    EACH,
    NEGATIVES,
    Kind,
    Negatives,
    absent_colours,
    absent_kinds,
    ask_for_colour,
    ask_for_kind,
    colours_in,
    kinds_in,
    most_frequent,
)
from diffclip.scenes.vocabulary import COLOURS, SHAPES
from diffclip.vlm.conversations import Turn

Sort = Literal["colours", "kinds"]
SORTS: tuple[Sort, ...] = get_args(Sort)
T = TypeVar("T")


class Frequencies:
    """What is in many scenes, the most frequent first: `popular` questions ask for it where it is absent."""

    def __init__(self, scenes: Iterable[Sequence[Spec]]) -> None:
        present = [sorted(kinds_in(scene)) for scene in scenes]
        self.kinds: list[Kind] = most_frequent(present)
        self.colours: list[str] = most_frequent(sorted({colour for colour, _ in kinds}) for kinds in present)


def yes_no(specs: Sequence[Spec], sort: Sort, often: Frequencies, dice: Dice) -> list[Turn]:
    """Questions for colours ("Is there anything red in the picture?") or kinds of objects ("Is there a red star …?").

    What is absent is drawn as in one of POPE's three sorts of questions, another one each time.
    """
    if sort == "colours":
        colours = dice.shuffle(colours_in(specs))
        chosen = _flips(colours, lambda here, how: absent_colours(here, how, often.colours, dice), dice)
        return [Turn(ask_for_colour(colour), answer) for colour, answer in chosen]
    kinds: list[Kind] = dice.shuffle(kinds_in(specs))
    found = _flips(kinds, lambda here, how: absent_kinds(here, how, often.kinds, dice), dice)
    return [Turn(ask_for_kind(kind), answer) for kind, answer in found]


def colours_of(specs: Sequence[Spec]) -> Turn:
    """Which colours there are, in the order of the vocabulary."""
    return Turn("Which colours are in the picture?", _listed(COLOURS, {spec.colour for spec in specs}))


def told(specs: Sequence[Spec], dice: Dice) -> Turn:
    """A question with more of an answer than yes or no."""
    spec = dice.pick(specs)
    ask = dice.pick(("colours", "shapes", "colour", "what", "number"))
    if ask == "colours":
        return colours_of(specs)
    if ask == "shapes":
        return Turn("Which shapes are in the picture?", _listed(SHAPES, {other.shape for other in specs}))
    if ask == "colour":
        colours = {other.colour for other in specs if other.shape == spec.shape}
        return Turn(f"What colour is the {spec.shape}?", _listed(COLOURS, colours))
    if ask == "what":
        shapes = {other.shape for other in specs if other.colour == spec.colour}
        names = {with_article(shape): shape for shape in SHAPES}
        return Turn(
            f"What is {spec.colour}?", join([name for name, shape in names.items() if shape in shapes])
        )
    return Turn("How many objects are in the picture?", NUMBERS[len(specs)])


def describe(specs: Sequence[Spec], dice: Dice) -> str:
    """All objects of a scene in one phrase, with their colours: what a picture is to who only reads."""
    groups: dict[Kind, list[Spec]] = {}
    for spec in specs:
        groups.setdefault((spec.colour, spec.shape), []).append(spec)
    return join([noun_phrase(group, frozenset({"colour"})) for group in dice.shuffle(list(groups.values()))])


def _flips(
    present: Sequence[T], absent_from: Callable[[Sequence[T], Negatives], list[T]], dice: Dice
) -> list[tuple[T, str]]:
    """As many as are `present`: each with even chances one of them, or one that is absent."""
    chosen: list[tuple[T, str]] = []
    left, asked = list(present), []
    for _ in present:
        if dice.chance(0.5):
            chosen.append((left.pop(), "yes"))
        else:
            absent = absent_from(present, dice.pick(NEGATIVES))
            missing = dice.pick([one for one in absent if one not in asked][:EACH])
            asked.append(missing)
            chosen.append((missing, "no"))
    return chosen


def _listed(vocabulary: Iterable[str], words: set[str]) -> str:
    return join([word for word in vocabulary if word in words])

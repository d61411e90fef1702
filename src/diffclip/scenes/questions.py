"""Yes/no questions about what is in a picture, as in POPE (Li et al. 2023, arXiv 2305.10355)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeVar, get_args

from diffclip.errors import InputError, unknown
from diffclip.scenes.layout import Dice, Spec, lay_out, stream
from diffclip.scenes.phrases import with_article
from diffclip.scenes.scene import Scene, draw_scene
from diffclip.scenes.vocabulary import COLOURS, SHAPES

Negatives = Literal["random", "popular", "adversarial"]
NEGATIVES: tuple[Negatives, ...] = get_args(Negatives)
Kind = tuple[str, str]
T = TypeVar("T")

EACH = 3
"""Questions answered yes, and as many answered no, a picture (as in POPE)."""


@dataclass(frozen=True)
class Question:
    """One line of a question file; `label` is yes or no."""

    question_id: int
    image: str
    text: str
    label: str

    def record(self) -> dict[str, int | str]:
        return asdict(self)


def _objects(index: int) -> int:
    return 3 + index % 2


def _specs(index: int, seed: int) -> list[Spec]:
    return lay_out(Dice(stream("scene", "test", seed, index)), _objects(index), None)[1]


def question_indices(pictures: int, seed: int = 0) -> list[int]:
    """The first scenes of the test split with at least EACH kinds of object in them.

    Raises:
        InputError: fewer than one picture asked for, or a seed out of range.
    """
    if pictures < 1:
        raise InputError(f"questions need at least one picture, not {pictures}")
    found: list[int] = []
    index = 0
    while len(found) < pictures:
        if len(kinds_in(_specs(index, seed))) >= EACH:
            found.append(index)
        index += 1
    return found


def question_scene(index: int, seed: int = 0, size: int = 64) -> Scene:
    """The picture that the questions on scene `index` are about."""
    return draw_scene(index, split="test", seed=seed, size=size, objects=_objects(index))


def image_name(index: int) -> str:
    return f"scene_{index:07d}.jpg"


def questions(pictures: int = 500, negatives: Negatives = "random", seed: int = 0) -> list[Question]:
    """EACH yes and EACH no questions a picture, alternating.

    What is asked for but absent is drawn from all kinds (`random`), from the most frequent kinds of these
    pictures (`popular`), or shares its colour or shape with something in the picture (`adversarial`).

    Raises:
        InputError: an unknown sort of negatives, fewer than one picture, or a seed out of range.
    """
    return _asked(pictures, negatives, seed, kinds_in, absent_kinds, ask_for_kind)


def absent_kinds(
    present: Sequence[Kind], negatives: Negatives, often: Sequence[Kind], dice: Dice
) -> list[Kind]:
    """All kinds that are not in a picture, those first that `negatives` asks for; `often`: the most frequent first."""
    everything = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    if negatives == "popular":
        ranked = [*often, *everything]
    elif negatives == "adversarial":
        colours, shapes = {colour for colour, _ in present}, {shape for _, shape in present}
        shuffled = dice.shuffle(everything)
        # both words are true of something in the picture, but not of the same thing; then one word
        ranked = sorted(shuffled, key=lambda kind: -(kind[0] in colours) - (kind[1] in shapes))
    else:
        ranked = dice.shuffle(everything)
    return [kind for kind in dict.fromkeys(ranked) if kind not in present]


def colour_questions(pictures: int = 500, negatives: Negatives = "random", seed: int = 0) -> list[Question]:
    """As `questions`, but for colours alone ("Is there anything red in the picture?").

    A picture has as many yes as no questions, at most EACH and no more than it has colours. Absent colours are drawn
    from all (`random`), are the most frequent ones of these pictures (`popular`), or come nearest to a colour in the
    picture (`adversarial`, by distance in RGB).

    Raises:
        InputError: an unknown sort of negatives, fewer than one picture, or a seed out of range.
    """
    return _asked(pictures, negatives, seed, colours_in, absent_colours, ask_for_colour)


def absent_colours(
    present: Sequence[str], negatives: Negatives, often: Sequence[str], dice: Dice
) -> list[str]:
    """All colours that are not in a picture, those first that `negatives` asks for."""
    ranked = [*often, *COLOURS] if negatives == "popular" else dice.shuffle(tuple(COLOURS))
    if negatives == "adversarial":
        ranked = sorted(ranked, key=lambda name: min(math.dist(COLOURS[name], COLOURS[p]) for p in present))
    return [name for name in dict.fromkeys(ranked) if name not in present]


def kinds_in(specs: Sequence[Spec]) -> list[Kind]:
    """The kinds of objects in a picture, each once, in their order."""
    return list(dict.fromkeys((spec.colour, spec.shape) for spec in specs))


def colours_in(specs: Sequence[Spec]) -> list[str]:
    """The objects' colours in a picture, each once, in their order."""
    return list(dict.fromkeys(spec.colour for spec in specs))


def ask_for_kind(kind: Kind) -> str:
    """The question whether there is such an object."""
    return f"Is there {with_article(' '.join(kind))} in the picture?"


def ask_for_colour(colour: str) -> str:
    """The question whether anything has this colour."""
    return f"Is there anything {colour} in the picture?"


def most_frequent(scenes: Iterable[Iterable[T]]) -> list[T]:
    """What is in many scenes, the most frequent first."""
    return [one for one, _count in Counter(one for scene in scenes for one in scene).most_common()]


def _asked(
    pictures: int,
    negatives: Negatives,
    seed: int,
    present_in: Callable[[Sequence[Spec]], list[T]],
    absent_from: Callable[[Sequence[T], Negatives, Sequence[T], Dice], list[T]],
    ask: Callable[[T], str],
) -> list[Question]:
    """At most EACH questions for what is present in a picture, each followed by one for what is absent."""
    if negatives not in NEGATIVES:
        raise unknown("sort of negatives", negatives, NEGATIVES)
    present = {index: present_in(_specs(index, seed)) for index in question_indices(pictures, seed)}
    often = most_frequent(present.values())
    asked: list[Question] = []
    for index, here in present.items():
        dice = Dice(stream("questions", "test", seed, index))
        yes = dice.shuffle(here)[:EACH]
        no = absent_from(here, negatives, often, dice)
        for pair in zip(yes, no, strict=False):
            for one, label in zip(pair, ("yes", "no"), strict=True):
                asked.append(Question(len(asked) + 1, image_name(index), ask(one), label))
    return asked

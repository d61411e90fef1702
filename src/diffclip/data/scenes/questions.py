"""Yes/no questions about what is in a picture, as in POPE (Li et al. 2023, arXiv 2305.10355)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from diffclip.data.scenes.layout import Dice, Spec, lay_out, stream
from diffclip.data.scenes.phrases import with_article
from diffclip.data.scenes.scene import Scene, draw_scene
from diffclip.data.scenes.vocabulary import COLOURS, SHAPES
from diffclip.errors import InputError, unknown

Negatives = Literal["random", "popular", "adversarial"]
NEGATIVES: tuple[Negatives, ...] = get_args(Negatives)
Kind = tuple[str, str]

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
        if len({(spec.colour, spec.shape) for spec in _specs(index, seed)}) >= EACH:
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
    if negatives not in NEGATIVES:
        raise unknown("sort of negatives", negatives, NEGATIVES)
    indices = question_indices(pictures, seed)
    present = {i: list(dict.fromkeys((spec.colour, spec.shape) for spec in _specs(i, seed))) for i in indices}
    often = [
        kind for kind, _count in Counter(kind for kinds in present.values() for kind in kinds).most_common()
    ]
    asked: list[Question] = []
    for index in indices:
        dice = Dice(stream("questions", "test", seed, index))
        yes = dice.shuffle(present[index])[:EACH]
        no = absent_kinds(present[index], negatives, often, dice)[:EACH]
        for here, missing in zip(yes, no, strict=True):
            for kind, label in ((here, "yes"), (missing, "no")):
                text = f"Is there {with_article(' '.join(kind))} in the picture?"
                asked.append(Question(len(asked) + 1, image_name(index), text, label))
    return asked


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
    if negatives not in NEGATIVES:
        raise unknown("sort of negatives", negatives, NEGATIVES)
    indices = question_indices(pictures, seed)
    present = {i: list(dict.fromkeys(spec.colour for spec in _specs(i, seed))) for i in indices}
    often = [
        name for name, _count in Counter(name for names in present.values() for name in names).most_common()
    ]
    asked: list[Question] = []
    for index in indices:
        dice = Dice(stream("questions", "test", seed, index))
        yes = dice.shuffle(present[index])[:EACH]
        no = absent_colours(present[index], negatives, often, dice)
        for here, missing in zip(yes, no, strict=False):
            for colour, label in ((here, "yes"), (missing, "no")):
                text = f"Is there anything {colour} in the picture?"
                asked.append(Question(len(asked) + 1, image_name(index), text, label))
    return asked


def absent_colours(
    present: Sequence[str], negatives: Negatives, often: Sequence[str], dice: Dice
) -> list[str]:
    """All colours that are not in a picture, those first that `negatives` asks for."""
    ranked = [*often, *COLOURS] if negatives == "popular" else dice.shuffle(tuple(COLOURS))
    if negatives == "adversarial":
        ranked = sorted(ranked, key=lambda name: min(math.dist(COLOURS[name], COLOURS[p]) for p in present))
    return [name for name in dict.fromkeys(ranked) if name not in present]

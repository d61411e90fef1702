"""Yes/no questions about the objects in an image, as in POPE (Li et al. 2023, arXiv:2305.10355)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count, islice, product
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from diffclip.scenes.captions import with_article
from diffclip.scenes.layout import Dice, Spec, lay_out, make_generator
from diffclip.scenes.scene import Scene, draw_scene
from diffclip.scenes.vocabulary import COLORS, SHAPES

Negatives = Literal["random", "popular", "adversarial"]
NEGATIVES: tuple[Negatives, ...] = get_args(Negatives)
ObjectKind = tuple[str, str]
T = TypeVar("T")

EACH = 3  # maximum number of questions per image with the answer yes, and as many with no (as in POPE)


class Topic(NamedTuple):
    """A topic of yes/no questions: kinds of objects ("a red star") or colors ("anything red").

    `present` lists the things in an image, each once, in the order of the objects. `absent` lists all other things,
    the best negatives of the sort first; its third argument has the things of all images, most frequent first.
    """

    present: Callable[[Sequence[Spec]], list[Any]]
    absent: Callable[[Sequence[Any], Negatives, Sequence[Any], Dice], list[Any]]
    ask: Callable[[Any], str]


def _absent(
    everything: Sequence[Any], distance: Callable[[Any, Sequence[Any]], float]
) -> Callable[[Sequence[Any], Negatives, Sequence[Any], Dice], list[Any]]:
    """Make a topic's `absent` from all its things and a function: the distance of a thing to the things of an image."""

    def absent(present: Sequence[Any], negatives: Negatives, popular: Sequence[Any], dice: Dice) -> list[Any]:
        ranked = [*popular, *everything] if negatives == "popular" else dice.shuffle(everything)
        if negatives == "adversarial":
            ranked.sort(key=lambda thing: distance(thing, present))
        return [thing for thing in dict.fromkeys(ranked) if thing not in present]

    return absent


def _distance_of_kinds(kind: ObjectKind, present: Sequence[ObjectKind]) -> float:
    """Return −2 if the color and the shape of `kind` both occur in the image, −1 if one of them does, else 0."""
    return -any(color == kind[0] for color, _ in present) - any(shape == kind[1] for _, shape in present)


TOPICS = {
    "colours": Topic(
        lambda specs: list(dict.fromkeys(spec.color for spec in specs)),
        _absent(
            tuple(COLORS), lambda name, present: min(math.dist(COLORS[name], COLORS[p]) for p in present)
        ),
        lambda color: f"Is there anything {color} in the picture?",
    ),
    "kinds": Topic(
        lambda specs: list(dict.fromkeys((spec.color, spec.shape) for spec in specs)),
        _absent(tuple(product(COLORS, SHAPES)), _distance_of_kinds),
        lambda kind: f"Is there {with_article(' '.join(kind))} in the picture?",
    ),
}


def questions(images: int, negatives: Negatives, seed: int, topic: str) -> list[dict[str, Any]]:
    """Ask pairs of a yes and a no question about each image: at most EACH, and at most one per thing in the image.

    The absent things are drawn from all (`random`), are the most frequent in these images (`popular`), or are similar
    to things in the image (`adversarial`): kinds that share colors and shapes with them, or colors near to them in RGB.

    Returns:
        The lines of a question file: `question_id`, `image`, `text`, and `label` (yes or no).
    """
    present_in, absent_from, ask = TOPICS[topic]
    present = {index: present_in(_specs(index, seed)) for index in question_indices(images, seed)}
    frequent = most_frequent(present.values())
    result: list[dict[str, Any]] = []
    for index, things in present.items():
        dice = Dice(make_generator("questions", "test", seed, index))
        yes = dice.shuffle(things)[:EACH]
        no = absent_from(things, negatives, frequent, dice)
        for pair in zip(yes, no, strict=False):
            for thing, label in zip(pair, ("yes", "no"), strict=True):
                number, image = len(result) + 1, image_name(index)
                result.append({"question_id": number, "image": image, "text": ask(thing), "label": label})
    return result


def question_indices(images: int, seed: int) -> list[int]:
    """Find the indices of the first scenes of the test split that have at least EACH kinds of objects."""
    indices = (index for index in count() if len(TOPICS["kinds"].present(_specs(index, seed))) >= EACH)
    return list(islice(indices, images))


def question_scene(index: int, seed: int, size: int) -> Scene:
    """Draw the image that the questions on scene `index` are about."""
    return draw_scene(index, split="test", seed=seed, size=size, objects=_objects(index))


def image_name(index: int) -> str:
    return f"scene_{index:07d}.jpg"


def most_frequent(scenes: Iterable[Iterable[T]]) -> list[T]:
    """List the things in many scenes, the most frequent first."""
    return [thing for thing, _count in Counter(chain.from_iterable(scenes)).most_common()]


def _objects(index: int) -> int:
    return 3 + index % 2


def _specs(index: int, seed: int) -> list[Spec]:
    return lay_out(Dice(make_generator("scene", "test", seed, index)), _objects(index), None)[1]

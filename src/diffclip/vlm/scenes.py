"""Conversations about the built-in scenes, in LLaVA's JSON, for both stages.

No answer follows from earlier answers of its conversation. Each yes/no answer is a coin flip. A conversation has at
most as many yes/no questions as its image has colors (or kinds of objects), so that a yes is always possible. With a
fixed number of yes answers, or with more questions, later answers would follow from earlier answers. A model would then
learn to count instead of learning to look at the image.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from diffclip.data.workers import Progress
from diffclip.files import write_atomically, write_text
from diffclip.scenes import draw_scene
from diffclip.scenes.captions import NUMBERS, join, noun_phrase, with_article, write_captions
from diffclip.scenes.layout import Dice, Spec, lay_out, make_generator
from diffclip.scenes.questions import EACH, NEGATIVES, TOPICS, image_name, most_frequent
from diffclip.scenes.vocabulary import COLORS, SHAPES
from diffclip.scenes.write import QUESTION_IMAGES, jpeg
from diffclip.vlm.conversations import IMAGE, Turn

STAGE_FILES = ("stage1.json", "stage2.json")
_REQUEST = "Describe the picture."
_CAPTION_SHARE, _OPEN_SHARE = 0.1, 0.7


def count_things(scenes: Iterable[Sequence[Spec]]) -> dict[str, list[Any]]:
    """List the colors and kinds of objects in many scenes by topic, the most frequent first.

    "Popular" questions ask for the most frequent things that an image does not have.
    """
    present = [sorted(TOPICS["kinds"].present(scene)) for scene in scenes]
    return {
        "colours": most_frequent(sorted({color for color, _ in kinds}) for kinds in present),
        "kinds": most_frequent(present),
    }


def write_conversations(
    folder: Path, images: int, talks: int, size: int, seed: int, progress: Progress
) -> None:
    """Write the folder `images`, `stage1.json` and, last, `stage2.json` to `folder`.

    There are `images` images of `size` × `size` pixels, of the train split, with one to four objects. POPE's questions
    are about other scenes, of the test split. Stage 1 has a caption for each image, stage 2 has `talks` conversations.
    Some of these are captions. The others have yes/no questions, half of them about colors and half about kinds of
    objects, and most of them also have an open question.
    """
    target = folder / QUESTION_IMAGES
    if not target.exists():  # after a stop
        with write_atomically(target) as temporary:
            temporary.mkdir()
            for index in range(images):
                scene = draw_scene(index, split="train", seed=seed, size=size, objects=_objects(index))
                (temporary / image_name(index)).write_bytes(jpeg(scene.image))
                progress("images", 1, images)
    laid_out = (lay_out_scene(index, seed) for index in range(images))
    scenes = [(specs, write_captions(specs, background, dice)) for specs, background, dice in laid_out]
    popular = count_things(specs for specs, _ in scenes)
    samples: tuple[list[Any], ...] = ([], [])
    for index, (specs, captions) in enumerate(scenes):
        caption = captions[index % len(captions)]
        samples[0].append(_sample(f"caption-{index}", index, [Turn(_REQUEST, caption)]))
        dice = Dice(make_generator("questions", "train", seed, index))
        for number in range(talks):
            samples[1].append(_sample(f"talk-{index}-{number}", index, _talk(specs, captions, popular, dice)))
    for name, stage_samples in zip(STAGE_FILES, samples, strict=True):
        write_text(folder / name, json.dumps(stage_samples))


def lay_out_scene(index: int, seed: int) -> tuple[list[Spec], str, Dice]:
    """Return the objects and background of a scene, as `write_conversations` draws it, and the dice for captions."""
    dice = Dice(make_generator("scene", "train", seed, index))
    background, specs = lay_out(dice, _objects(index), None)
    return specs, background, dice


def yes_no_turns(specs: Sequence[Spec], topic: str, popular: dict[str, list[Any]], dice: Dice) -> list[Turn]:
    """Ask as many yes/no questions as the scene has colors or kinds, each with even chances for yes and no.

    A "no" question asks for an absent thing, chosen as in one of POPE's three splits; `popular` is from `count_things`.
    """
    present_in, absent_from, ask = TOPICS[topic]
    unasked = dice.shuffle(present_in(specs))
    present = list(unasked)
    turns: list[Turn] = []
    denied: list[Any] = []
    for _ in present:
        if dice.chance(0.5):
            turns.append(Turn(ask(unasked.pop()), "yes"))
        else:
            absent = absent_from(present, dice.pick(NEGATIVES), popular[topic], dice)
            denied.append(dice.pick([thing for thing in absent if thing not in denied][:EACH]))
            turns.append(Turn(ask(denied[-1]), "no"))
    return turns


def color_turn(specs: Sequence[Spec]) -> Turn:
    """Ask for all colors, which are listed in the order of the vocabulary."""
    return Turn("Which colours are in the picture?", _listed(COLORS, {spec.color for spec in specs}))


def open_turn(specs: Sequence[Spec], dice: Dice) -> Turn:
    """Ask a question whose answer is more than yes or no."""
    spec = dice.pick(specs)
    topic = dice.pick(("colours", "shapes", "color", "what", "number"))
    if topic == "colours":
        return color_turn(specs)
    if topic == "shapes":
        return Turn("Which shapes are in the picture?", _listed(SHAPES, {thing.shape for thing in specs}))
    if topic == "color":
        colors = {thing.color for thing in specs if thing.shape == spec.shape}
        return Turn(f"What colour is the {spec.shape}?", _listed(COLORS, colors))
    if topic == "what":
        shapes = {thing.shape for thing in specs if thing.color == spec.color}
        return Turn(
            f"What is {spec.color}?", join([with_article(shape) for shape in SHAPES if shape in shapes])
        )
    return Turn("How many objects are in the picture?", NUMBERS[len(specs)])


def describe(specs: Sequence[Spec], dice: Dice) -> str:
    """Name all objects of a scene with their colors in one phrase, for texts without an image."""
    groups: dict[tuple[str, str], list[Spec]] = {}
    for spec in specs:
        groups.setdefault((spec.color, spec.shape), []).append(spec)
    return join([noun_phrase(group, frozenset({"color"})) for group in dice.shuffle(list(groups.values()))])


def _listed(vocabulary: Iterable[str], words: set[str]) -> str:
    return join([word for word in vocabulary if word in words])


def _objects(index: int) -> int:
    return 1 + index % 4


def _talk(
    specs: Sequence[Spec], captions: tuple[str, ...], popular: dict[str, list[Any]], dice: Dice
) -> list[Turn]:
    if dice.chance(_CAPTION_SHARE):
        return [Turn(_REQUEST, dice.pick(captions))]
    turns = yes_no_turns(specs, dice.pick(tuple(TOPICS)), popular, dice)
    if dice.chance(_OPEN_SHARE):
        turns.append(color_turn(specs) if dice.chance(0.5) else open_turn(specs, dice))
    return turns


def _sample(name: str, index: int, turns: list[Turn]) -> dict[str, Any]:
    messages: list[dict[str, str]] = []
    for question, answer in turns:
        text = question if messages else f"{IMAGE}\n{question}"
        messages += [{"from": "human", "value": text}, {"from": "gpt", "value": answer}]
    return {"id": name, "image": image_name(index), "conversations": messages}

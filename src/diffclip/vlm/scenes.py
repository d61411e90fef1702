"""The built-in scenes as LLaVA's JSON, for both stages, and their questions as POPE's files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diffclip.errors import InputError
from diffclip.files import write_atomically
from diffclip.scenes import colour_questions, draw_scene
from diffclip.scenes.export import QUESTION_IMAGES, jpeg, write_questions
from diffclip.scenes.layout import Dice, lay_out, stream
from diffclip.scenes.questions import NEGATIVES, image_name
from diffclip.vlm.conversations import IMAGE, Turn
from diffclip.vlm.scene_talk import SORTS, Frequencies, colours_of, told, yes_no

STAGES = ("stage1.json", "stage2.json")
KINDS, COLOURS = "kinds", "colours"
"""The two folders of questions: for kinds of objects ("a red star"), and for colours alone ("anything red")."""
_MANIFEST = "conversations.json"
_SAID = "Describe the picture."
_CAPTIONED_SHARE = 0.1
_LISTED_SHARE = 0.7


@dataclass(frozen=True)
class Talks:
    """What determines every file: `pictures` drawn, each in `talks` conversations of stage 2."""

    pictures: int = 12_000
    talks: int = 2
    size: int = 64
    seed: int = 0


def write_conversations(folder: str | Path, wanted: Talks) -> bool:
    """Write `images`, `stage1.json` and `stage2.json` below `folder`, whole or not at all.

    The pictures are those of the train split, with one to four objects; the questions of `write_question_files` are
    about the test split, which shares no scene with it. Stage 1 has a caption a picture. Stage 2 has yes/no questions
    (`scene_talk`), half of the conversations for colours and half for kinds of objects, most followed by a question
    with more of an answer, and some captions.

    Returns:
        False when the folder had all this already.

    Raises:
        InputError: the folder holds something else, or cannot be written.
    """
    folder = Path(folder)
    if folder.exists():
        _refuse_others(folder, wanted)
        return False
    often = Frequencies(_specs(index, wanted.seed) for index in range(wanted.pictures))
    captions: list[dict[str, Any]] = []
    talks: list[dict[str, Any]] = []
    with write_atomically(folder) as temporary:
        (temporary / QUESTION_IMAGES).mkdir(parents=True)
        for index in range(wanted.pictures):
            scene = draw_scene(
                index, split="train", seed=wanted.seed, size=wanted.size, objects=_objects(index)
            )
            (temporary / QUESTION_IMAGES / image_name(index)).write_bytes(jpeg(scene.image))
            caption = scene.captions[index % len(scene.captions)]
            captions.append(_sample(f"caption-{index}", index, [Turn(_SAID, caption)]))
            dice = Dice(stream("questions", "train", wanted.seed, index))
            for number in range(wanted.talks):
                turns = _talk(index, wanted.seed, scene.captions, often, dice)
                talks.append(_sample(f"talk-{index}-{number}", index, turns))
        for name, samples in zip(STAGES, (captions, talks), strict=True):
            (temporary / name).write_text(json.dumps(samples), encoding="utf-8")
        (temporary / _MANIFEST).write_text(json.dumps(asdict(wanted)) + "\n", encoding="utf-8")
    return True


def write_question_files(folder: str | Path, pictures: int = 500, size: int = 64, seed: int = 0) -> bool:
    """Write `kinds` and `colours` below `folder`: POPE's three files each, the pictures in `kinds/images`.

    Returns:
        False when both were there.

    Raises:
        InputError: the folder cannot be written.
    """
    kinds, colours = Path(folder) / KINDS, Path(folder) / COLOURS
    if kinds.exists() and colours.exists():
        return False
    if not kinds.exists():
        write_questions(kinds, pictures, size, seed)
    if not colours.exists():
        with write_atomically(colours) as temporary:
            temporary.mkdir(parents=True)
            for negatives in NEGATIVES:
                asked = colour_questions(pictures, negatives, seed)
                lines = [json.dumps(question.record()) + "\n" for question in asked]
                (temporary / f"coco_pope_{negatives}.json").write_text("".join(lines), encoding="utf-8")
    return True


def _refuse_others(folder: Path, wanted: Talks) -> None:
    try:
        found = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if found != asdict(wanted):
        raise InputError(
            f"{folder} holds other conversations ({found or 'no ' + _MANIFEST}): remove it, or choose another folder"
        )


def _objects(index: int) -> int:
    return 1 + index % 4


def _specs(index: int, seed: int) -> Any:
    return lay_out(Dice(stream("scene", "train", seed, index)), _objects(index), None)[1]


def _talk(index: int, seed: int, captions: tuple[str, ...], often: Frequencies, dice: Dice) -> list[Turn]:
    specs = _specs(index, seed)
    if dice.chance(_CAPTIONED_SHARE):
        return [Turn(_SAID, dice.pick(captions))]
    turns = yes_no(specs, dice.pick(SORTS), often, dice)
    if dice.chance(_LISTED_SHARE):
        turns.append(colours_of(specs) if dice.chance(0.5) else told(specs, dice))
    return turns


def _sample(name: str, index: int, turns: list[Turn]) -> dict[str, Any]:
    said = []
    for number, (question, answer) in enumerate(turns):
        asked = f"{IMAGE}\n{question}" if number == 0 else question
        said += [{"from": "human", "value": asked}, {"from": "gpt", "value": answer}]
    return {"id": name, "image": image_name(index), "conversations": said}

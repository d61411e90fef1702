"""Conversations about pictures in LLaVA's JSON, read whole and checked before anything is trained on them."""

from __future__ import annotations

import gc
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from diffclip.errors import InputError
from diffclip.files import printable

# Where the picture stands in a question, whatever the tokenizer of the language model calls it.
IMAGE = "<image>"

_NAMED = 3


class Turn(NamedTuple):
    """A question and its answer, without white space around them; `IMAGE` is taken out of the question."""

    question: str
    answer: str


class Conversation(NamedTuple):
    """One sample: the picture comes before the first question, or there is none."""

    id: str
    picture: Path | None
    turns: tuple[Turn, ...]
    position: int = 0  # in the list, from 0: ids need not be unique, LLaVA's own are not
    file: str = ""

    @property
    def name(self) -> str:
        """How errors call it."""
        return _name(self.file, self.position, self.id)


def read_conversations(
    json_file: str | Path, pictures: str | Path, check_pictures: bool = True
) -> list[Conversation]:
    """Read a list of `{id, image?, conversations: [{from: human|gpt, value}, …]}`, as LLaVA publishes it.

    Human and gpt take turns, beginning with human and ending with gpt. A sample with `image` has `<image>` once, at the
    start or the end of its first human turn; no other text has it. Ids may repeat or be left out.

    Args:
        json_file: the list.
        pictures: folder that the paths under `image` start from.
        check_pictures: look for every picture by its name (a listing of each folder, nothing is opened).

    Raises:
        InputError: the file is not such a list, the first sample that is not as above, or pictures that are not there.
    """
    folder, file = Path(pictures), str(json_file)
    with _many_objects():
        samples = read_samples(json_file)
        conversations, names = [], set()
        for index, sample in enumerate(samples):
            conversation = parse_sample(sample, index, file, folder)
            conversations.append(conversation)
            if conversation.picture is not None:
                names.add(sample["image"])
            samples[index] = None  # twice the text of a large set need not fit into memory
    if check_pictures and names:
        missing = missing_pictures(folder, names)
        if missing:
            shown = ", ".join(printable(name) for name in sorted(missing)[:_NAMED])
            raise InputError(
                f"{len(missing):,} of the {len(names):,} pictures of {file} are not in {folder}, such as {shown}: give "
                "the folder that these paths start from, or keep what is there by 'diffclip vlm data --pictures'"
            )
    return conversations


def read_samples(json_file: str | Path) -> list[Any]:
    """The entries of a list in JSON as they stand there.

    Raises:
        InputError: missing or unreadable, not JSON, not a list, or an empty one.
    """
    wanted = "give a list of conversations in LLaVA's JSON"
    try:
        content = Path(json_file).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{json_file} is not UTF-8 ({error.reason}): {wanted}") from error
    except FileNotFoundError:
        raise InputError(f"{json_file} does not exist: check the path of the conversations") from None
    except OSError as error:
        raise InputError(f"cannot read {json_file}: {error.strerror or error}") from error
    try:
        with _many_objects():
            samples = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{json_file} is not JSON ({error}): {wanted}") from error
    if not isinstance(samples, list):
        raise InputError(f"{json_file} is not a list but {_kind(samples)}: {wanted}")
    if not samples:
        raise InputError(f"{json_file} is an empty list: {wanted}")
    return samples


def parse_sample(sample: Any, index: int, file: str, pictures: Path) -> Conversation:
    """Check one entry of the list and take it apart; nothing is looked for on the disk.

    Raises:
        InputError: names file, index and id, and what is wrong.
    """
    own_id = sample.get("id", "") if isinstance(sample, dict) else ""
    try:
        if not isinstance(sample, dict):
            raise _FaultError(f"it is {_kind(sample)}, write an object with id, image and conversations")
        image = sample.get("image")
        picture = None if image is None else pictures / _relative(image)
        turns = _turns(sample.get("conversations"), has_picture=picture is not None)
    except _FaultError as fault:
        raise InputError(f"{_name(file, index, own_id)}: {fault}, or leave the sample out") from None
    return Conversation(str(own_id), picture, turns, index, file)


def missing_pictures(folder: Path, names: Iterable[str]) -> set[str]:
    """Which of `names`, paths relative to `folder`, are not there.

    Folders are listed once each: on network disks that is far faster than asking for half a million files.

    Raises:
        InputError: `folder` is none, or one in it cannot be listed.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give the one that the pictures' paths start from")
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[os.path.dirname(name)].append(name)
    missing: set[str] = set()
    for parent, group in groups.items():
        try:
            there = set(os.listdir(folder / parent))
        except (FileNotFoundError, NotADirectoryError):
            there = set()
        except OSError as error:
            raise InputError(f"cannot list {folder / parent}: {error.strerror or error}") from error
        missing.update(name for name in group if os.path.basename(name) not in there)
    return missing


class _FaultError(Exception):
    """What is wrong with a sample, and how to mend it."""


def _name(file: str, index: int, own_id: object) -> str:
    named = f" (id {printable(str(own_id))[:80]})" if own_id not in ("", None) else ""
    return f"{file}, sample [{index}]{named}"


def _kind(value: object) -> str:
    if value == "":
        return "an empty text"
    kinds = {dict: "an object", list: "a list", str: "a text", type(None): "null"}
    return kinds.get(type(value), "a number or a truth value")


def _relative(image: object) -> str:
    if not isinstance(image, str) or not image or "\0" in image:
        raise _FaultError(f"'image' is no path ({_kind(image)}), write that of one picture there")
    if os.path.isabs(image) or (".." in image and ".." in image.split("/")):
        raise _FaultError(
            f"the picture {printable(image)} leaves the pictures' folder, write a path that starts from it"
        )
    return image


def _turns(values: object, has_picture: bool) -> tuple[Turn, ...]:
    if not isinstance(values, list) or not values:
        raise _FaultError("it has no answer ('conversations' is empty), add turns of human and gpt")
    texts = [_text(value, number) for number, value in enumerate(values)]
    if len(texts) % 2:
        raise _FaultError("it has no answer to its last human turn, add a gpt turn")
    if has_picture:
        texts[0] = _without_image(texts[0])
    for number, text in enumerate(texts):
        if IMAGE in text:
            raise _FaultError(
                f"turn {number + 1} has an {IMAGE} too many, it belongs into the first human turn, once"
                if has_picture
                else f"turn {number + 1} has {IMAGE} but there is no picture, add 'image' or take it out"
            )
        if number % 2 and not text:
            raise _FaultError(f"the answer in turn {number + 1} is empty, write one")
    return tuple(Turn(texts[number], texts[number + 1]) for number in range(0, len(texts), 2))


def _text(value: object, number: int) -> str:
    """The text of the turn `number`, from 0, whose even ones are human."""
    speaker, text = (value.get("from"), value.get("value")) if isinstance(value, dict) else (None, None)
    if speaker not in ("human", "gpt"):
        raise _FaultError(
            f"turn {number + 1} is from {printable(str(speaker))[:80]!r}, write 'human' or 'gpt'"
        )
    if speaker != ("gpt" if number % 2 else "human"):
        after = f"after another {speaker} turn" if number else "first"
        raise _FaultError(
            f"turn {number + 1} is from {speaker!r} {after}, let human and gpt take turns, human first"
        )
    if not isinstance(text, str):
        raise _FaultError(f"the value of turn {number + 1} is {_kind(text)}, write a text")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _FaultError(
                f"turn {number + 1} has half a character (a lone surrogate), take it out"
            ) from None
    return text.strip()


def _without_image(text: str) -> str:
    count = text.count(IMAGE)
    if count == 0:
        raise _FaultError(f"it has a picture but no {IMAGE}, write that into its first human turn")
    if count > 1:
        raise _FaultError(f"it has {IMAGE} {count} times, write it once")
    if text.startswith(IMAGE):
        return text.removeprefix(IMAGE).lstrip()
    if text.endswith(IMAGE):
        return text.removesuffix(IMAGE).rstrip()
    raise _FaultError(f"{IMAGE} stands inside its first human turn, write it at the start or the end")


@contextmanager
def _many_objects() -> Iterator[None]:
    """Without the search for cycles, which otherwise goes over the millions of new objects again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

"""Conversations about images in LLaVA's JSON: read one by one, checked, and filtered by folder of images."""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from diffclip.errors import InputError
from diffclip.files import check_writable, printable, write_atomically

IMAGE = "<image>"
"""The mark of the image's place in a question, whatever the tokenizer of the language model calls it."""
_WANTED = "give a list of conversations in LLaVA's JSON, or one conversation a line"
_SHOWN, _SHOWN_FOLDERS = 3, 10
_CHUNK, _LARGEST_SAMPLE = 1 << 22, 1 << 26  # letters
_BETWEEN = re.compile(r"[\s,]*")


class Turn(NamedTuple):
    """A question and its answer, without white space around them; `IMAGE` is taken out of the question."""

    question: str
    answer: str


class Conversation(NamedTuple):
    """One sample. The image comes before the first question; `image` is its path in the folder of images, or None."""

    id: str
    image: str | None
    turns: tuple[Turn, ...]
    position: int = 0  # in the file, from 0: LLaVA's ids are not unique
    file: str = ""

    @property
    def name(self) -> str:
        """The sample's name in errors."""
        return _name(self.file, self.position, self.id)


def read_samples(json_file: str | Path) -> Iterator[Any]:
    """Yield the entries of a JSON list, or of JSON lines, without holding the file in memory.

    Raises:
        InputError: the file is missing, cannot be read, is not JSON, or is empty or cut off.
    """
    decode = json.JSONDecoder().raw_decode
    try:
        with open(json_file, encoding="utf-8-sig") as handle:
            text = handle.read(_CHUNK).lstrip()
            is_list, is_closed, is_empty = text.startswith("["), False, True
            at = int(is_list)
            while True:
                at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
                if at < len(text) and is_list and text[at] == "]":
                    is_closed = True
                    break
                try:
                    sample, at = decode(text, at)
                except RecursionError as error:
                    raise InputError(f"{json_file} is not JSON (too deeply nested): {_WANTED}") from error
                except ValueError as error:  # cut off at the end of a chunk, or not JSON
                    more = handle.read(_CHUNK)
                    text, at = text[at:] + more, 0
                    if not more and not text:
                        break
                    if not more or len(text) > _LARGEST_SAMPLE:
                        raise InputError(f"{json_file} is not JSON ({error}): {_WANTED}") from error
                    continue
                is_empty = False
                yield sample
            if is_closed and (text[at + 1 :] + handle.read(_CHUNK)).strip():
                raise InputError(f"{json_file} is not JSON (text after its list): {_WANTED}")
    except UnicodeDecodeError as error:
        raise InputError(f"{json_file} is not UTF-8 ({error.reason}): {_WANTED}") from error
    except FileNotFoundError:
        raise InputError(f"{json_file} does not exist: check the path of the conversations") from None
    except OSError as error:
        raise InputError(f"cannot read {json_file}: {error.strerror or error}") from error
    if is_list and not is_closed:
        raise InputError(f"{json_file} is cut off, its list does not end: fetch it again")
    if is_empty:
        raise InputError(f"{json_file} is empty: {_WANTED}")


def parse_sample(sample: Any, index: int, file: str) -> Conversation:
    """Check one entry and take it apart; no file is looked for.

    An entry is `{id, image?, conversations: [{from: human|gpt, value}, …]}`, as LLaVA publishes it. Human and gpt take
    turns, human first and gpt last. A sample with `image` has `<image>` once, at the start or the end of its first
    human turn; no other text has it. Ids may repeat or be left out.

    Raises:
        InputError: names file, index and id, and the fault.
    """
    own_id = sample.get("id", "") if isinstance(sample, dict) else ""
    try:
        if not isinstance(sample, dict):
            raise _FaultError("it is not an object, write one with id, image and conversations")
        image = sample.get("image")
        image = None if image is None else _relative(image)
        turns = _turns(sample.get("conversations"), has_image=image is not None)
    except _FaultError as fault:
        raise InputError(f"{_name(file, index, own_id)}: {fault}, or leave the sample out") from None
    return Conversation(str(own_id), image, turns, index, file)


def missing_images(folder: Path, names: Iterable[str]) -> set[str]:
    """Return those of `names`, paths relative to `folder`, that do not exist.

    Each folder is listed once: on network disks that is far faster than half a million single look-ups.

    Raises:
        InputError: `folder` is not a folder, or one in it cannot be listed.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give the one that the images' paths start from")
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


def filter_conversations(
    source: str | Path, target: str | Path, images: str, folder: str | Path | None = None
) -> dict[str, Any]:
    """Write to `target` the samples of `source` whose image's path starts with `images`, unchanged and in order.

    Samples without an image are left out, and so are samples that training would refuse.

    Args:
        source: LLaVA's JSON.
        target: JSON of the same form, one sample a line.
        images: start of the path, such as "coco/".
        folder: also leave out samples whose image is not in this folder.

    Returns:
        The numbers of all `samples`, and of those `kept`, of "other images", "text only", with the "image missing", and
        "unusable"; `folders` counts samples by the first folder of their image, `faults` names unusable ones.

    Raises:
        InputError: `source` cannot be read, is `target`, or no sample is left.
    """
    source, target = Path(source), Path(target)
    if target.exists() and source.exists() and target.samefile(source):
        raise InputError(f"{target} is the source itself: give the result another name")
    check_writable(target)
    counts = dict.fromkeys(("samples", "kept", "other images", "text only", "image missing", "unusable"), 0)
    folders: Counter[str] = Counter()
    faults: list[str] = []
    kept: list[dict[str, Any]] = []
    for index, sample in enumerate(read_samples(source)):
        counts["samples"] += 1
        image = sample.get("image") if isinstance(sample, dict) else None
        if isinstance(image, str):
            folders[image.partition("/")[0] + "/" if "/" in image else "(no folder)"] += 1
        if isinstance(sample, dict) and image is None:
            counts["text only"] += 1
        elif isinstance(image, str) and not image.startswith(images):
            counts["other images"] += 1
        else:
            try:
                parse_sample(sample, index, str(source))
                kept.append(sample)
            except InputError as error:
                counts["unusable"] += 1
                faults += [str(error)] if len(faults) < _SHOWN else []
    if folder is not None and kept:
        lacking = missing_images(Path(folder), {sample["image"] for sample in kept})
        found = [sample for sample in kept if sample["image"] not in lacking]
        counts["image missing"], kept = len(kept) - len(found), found
    counts["kept"] = len(kept)
    if not kept:
        left_out = ", ".join(f"{number:,} {reason}" for reason, number in counts.items() if number)
        common = ", ".join(
            f"{printable(name)} ({number:,})" for name, number in folders.most_common(_SHOWN_FOLDERS)
        )
        raise InputError(
            f"no sample of {source} is left ({left_out}{'; ' + faults[0] if faults else ''}): choose --images from "
            f"{common or 'a file with images'}, and --folder as the folder that these paths start from"
        )
    with write_atomically(target) as temporary, temporary.open("w", encoding="utf-8") as handle:
        for number, sample in enumerate(kept):
            handle.write(("[\n" if number == 0 else ",\n") + json.dumps(sample))
        handle.write("\n]\n")
    return {**counts, "folders": dict(folders.most_common()), "faults": faults}


class _FaultError(Exception):
    """A fault of a sample, and how to correct it."""


def _name(file: str, index: int, own_id: object) -> str:
    named = f" (id {printable(str(own_id))[:80]})" if own_id not in ("", None) else ""
    return f"{file}, sample [{index}]{named}"


def _relative(image: object) -> str:
    if not isinstance(image, str) or not image or "\0" in image:
        raise _FaultError("'image' is not a path, write the path of one image")
    if os.path.isabs(image) or (".." in image and ".." in image.split("/")):
        raise _FaultError(
            f"the image {printable(image)} is outside the folder of images, write a path that starts from it"
        )
    return image


def _turns(values: object, has_image: bool) -> tuple[Turn, ...]:
    if not isinstance(values, list) or not values:
        raise _FaultError("it has no answer ('conversations' is empty), add turns of human and gpt")
    texts = [_text(value, number) for number, value in enumerate(values)]
    if len(texts) % 2:
        raise _FaultError("it has no answer to its last human turn, add a gpt turn")
    if has_image:
        texts[0] = _without_mark(texts[0])
    for number, text in enumerate(texts):
        if IMAGE in text:
            raise _FaultError(
                f"turn {number + 1} has an {IMAGE} too many, write it once, in the first human turn"
                if has_image
                else f"turn {number + 1} has {IMAGE} but there is no image, add 'image' or take it out"
            )
        if number % 2 and not text:
            raise _FaultError(f"the answer in turn {number + 1} is empty, write one")
    return tuple(Turn(texts[number], texts[number + 1]) for number in range(0, len(texts), 2))


def _text(value: object, number: int) -> str:
    """Return the text of turn `number` (from 0; human turns are even)."""
    speaker, text = (value.get("from"), value.get("value")) if isinstance(value, dict) else (None, None)
    if speaker != ("gpt" if number % 2 else "human"):
        raise _FaultError(
            f"turn {number + 1} is from {printable(str(speaker))[:80]!r}, let human and gpt take turns, human first"
        )
    if not isinstance(text, str):
        raise _FaultError(f"the value of turn {number + 1} is not a text, write one")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _FaultError(f"turn {number + 1} has half a character (a lone surrogate), take it out") from None
    return text.strip()


def _without_mark(text: str) -> str:
    count = text.count(IMAGE)
    if count != 1:
        raise _FaultError(f"it has an image and {IMAGE} {count} times in its first human turn, write it once")
    if text.startswith(IMAGE):
        return text.removeprefix(IMAGE).lstrip()
    if text.endswith(IMAGE):
        return text.removesuffix(IMAGE).rstrip()
    raise _FaultError(f"{IMAGE} is inside its first human turn, write it at the start or the end")

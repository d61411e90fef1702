"""What a model answered, by question, in a file that outlives whoever writes it.

The first line says whose answers these are; a file of another's is begun again. Then comes a line an answer, written as
they come, with a key of what it follows from: where the question or its picture has changed, the answer counts no more.
What was cut off in the middle of a line, by a kill or a full disk, is asked again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diffclip.errors import InputError
from diffclip.files import disk_errors, lock_file, write_text

_HEADER = "answers_of"
_KEY = "asked"


class AnswerFile:
    """The answers in `path` of the model that `identity` tells, to the questions in `keys`: id → key.

    Attributes:
        found: the answers so far, by question id.
        replaced: whether the file held answers of something else, which are gone.

    Raises:
        InputError: the file cannot be read or written.
    """

    def __init__(self, path: Path, identity: Mapping[str, object], keys: Mapping[int, str]) -> None:
        self.path, self._keys = path, keys
        self.found: dict[int, str] = {}
        text = ""
        if path.exists():
            with disk_errors(path):
                text = path.read_bytes().decode("utf-8", errors="replace")
        header = _line({_HEADER: dict(identity)})
        lines = text.splitlines(keepends=True)
        self.replaced = bool(lines) and lines[0] != header
        whole = [header]
        for line in [] if self.replaced else lines[1:]:
            kept = _read(line)
            if kept is None:
                continue
            number, key, answer = kept
            # one about more questions, of a call without --limit, stays
            if keys.get(number, key) == key:
                whole.append(line)
                self.found[number] = answer
        if whole != lines:
            write_text(path, "".join(whole))

    def add(self, answers: Iterable[Mapping[str, Any]]) -> None:
        """Append answers, each with a `question_id` and the `answer`; those of one call are written at once.

        Raises:
            InputError: the file cannot be written.
        """
        answers = [{**one, _KEY: self._keys[one["question_id"]]} for one in answers]
        with disk_errors(self.path), self.path.open("ab") as handle:
            handle.write("".join(map(_line, answers)).encode())
        self.found |= {one["question_id"]: one["answer"] for one in answers}


@contextmanager
def holding(place: Path, lock: Path) -> Iterator[None]:
    """Keep other processes from answering into `place` by the file `lock`, whose folder is made.

    Raises:
        InputError: one does already, or the folder cannot be made.
    """
    with disk_errors(lock.parent):
        lock.parent.mkdir(parents=True, exist_ok=True)
    held = lock_file(lock)
    if isinstance(held, str):
        raise InputError(f"{held} is answering into {place}: wait for it, or give another --output")
    try:
        yield
    finally:
        held.close()


def _line(fields: Mapping[str, Any]) -> str:
    # escaped: what separates lines for some readers, such as U+2028, may be in an answer
    return json.dumps(fields) + "\n"


def _read(line: str) -> tuple[int, str, str] | None:
    """The question's id, the key and the answer; None for a line that was cut off."""
    if not line.endswith("\n"):
        return None
    try:
        fields = json.loads(line)
        number, key, answer = fields["question_id"], fields[_KEY], fields["answer"]
    except (json.JSONDecodeError, TypeError, KeyError):
        return None
    if isinstance(number, int) and isinstance(key, str) and isinstance(answer, str):
        return number, key, answer
    return None

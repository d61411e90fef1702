"""Errors with a message of one line (input, fault, way out), warnings, and addresses without their secrets."""

from __future__ import annotations

import difflib
import errno
import importlib.util
import os
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pydantic import ValidationError

# Addresses in a text: the part before the host, and the query, may hold a password or a key.
_USER = re.compile(r"(?<=://)[^\s/'\"\\]+@")
_QUERY = re.compile(r"(://[^\s?'\"\\]*)\?[^\s'\"\\]+")

_NAMED_FAULTS = 4  # in a message
_TYPES = ("str", "int", "float", "bool")
# our words for the faults that pydantic finds, by its type of error
_FAULTS = {
    "literal_error": "choose {expected}",
    "value_error": "{error}",  # raised by our own checks
    "extra_forbidden": "no such key",
    "missing": "no value is given",
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "{value!r} is not a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "{value!r} is not a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "{value!r} is not true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "{value!r} is not a list: write [{value}]"),
    **dict.fromkeys(("dict_type", "model_type"), "{value!r} has no keys"),
    "finite_number": "{value!r} is not a finite number",
    "json_invalid": "it is not JSON",
    "too_short": "{value!r} has too few items: give at least {min_length}",
    "too_long": "{value!r} has too many items: give at most {max_length}",
    "string_type": "{value!r} is not a text",
    "greater_than": "{value!r} is not above {gt}",
    "greater_than_equal": "{value!r} is below {ge}",
    "less_than": "{value!r} is not below {lt}",
    "less_than_equal": "{value!r} is above {le}",
}


class DiffCLIPError(Exception):
    """A failure that the command line explains in one line, without a traceback (exit code 1).

    `DiffCLIPError(line)` is a whole line. `DiffCLIPError(name, reason, advice)` has its parts, for code that shows them
    apart, and reads "NAME REASON: ADVICE".
    """

    exit_code = 1

    def __init__(self, name: str, reason: str = "", advice: str = "") -> None:
        super().__init__(": ".join(filter(None, (f"{name} {reason}".strip(), advice))))
        self.name, self.reason, self.advice = name, reason, advice


class RankError(DiffCLIPError):
    """A failure of one rank of a run that the others may not have, so that this rank prints it. Of every other
    `DiffCLIPError` the first rank of a node prints the line for all."""


class InputError(DiffCLIPError, ValueError):
    """Bad input: the message is one line naming the input and the way out (exit code 2)."""

    exit_code = 2


class StoppedError(DiffCLIPError):
    """A run was asked to stop, and has saved its state."""

    # EX_TEMPFAIL of sysexits.h: nothing is wrong, try again
    exit_code = 75


class NotFiniteError(InputError):
    """A model returns numbers that are not finite."""


class DivergedError(DiffCLIPError):
    """The loss, gradients or embeddings of a training were not finite at `step`; a repetition would diverge again."""

    def __init__(self, message: str, step: int = 0) -> None:  # pickle passes `message`, then sets `step`
        super().__init__(message)
        self.step = step


@dataclass(frozen=True)
class Fault:
    """A shard, sample or mask that was skipped, and why; `name` and `reason` together form a sentence.

    `kind` is "note" if nothing was skipped but the user should know about the fault.
    """

    name: str
    reason: str
    kind: Literal["broken", "caption", "mask", "note"] = "broken"

    def __str__(self) -> str:
        return f"{self.name} {self.reason}"


def sample_fault(name: str, error: Exception, kind: Literal["broken", "caption"] = "broken") -> Fault:
    """Describe why `error` makes the sample `name` unusable."""
    if isinstance(error, InputError):
        return Fault(name, ": ".join(filter(None, (error.reason or str(error), error.advice))), kind)
    return Fault(name, f"cannot be read ({error})", kind)


@contextmanager
def explain_errors(problem: str, advice: str, kind: type[DiffCLIPError] = InputError) -> Iterator[None]:
    """Turn any exception of a library into one line: `problem`, the exception's first line, `advice`.

    Errors of a full disk, and errors that are a `DiffCLIPError` already, pass unchanged.
    """
    try:
        yield
    except Exception as error:
        is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if is_full or isinstance(error, DiffCLIPError):
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        # torch begins a list of faults with a line that has none of them
        line = textwrap.shorten(" ".join(lines[: 1 + lines[0].endswith(":")]), 150, placeholder="…")
        raise kind(f"{problem} ({line.rstrip('.:')}): {advice}") from error


_OFFERED = 3  # names that begin with a wrong one


def explain(error: ValidationError, known: str | None = None) -> str:
    """Describe the errors of pydantic in one line: the first few fields with their faults.

    The field `known` is left unnamed. Of a field that may have values of several types, the faults are joined by "or".
    """
    faults: dict[str, dict[str, None]] = {}
    for fault in error.errors():
        # without the types, such as list[str], that pydantic tried for the field
        parts = [part for part in map(str, fault["loc"]) if part not in _TYPES and "[" not in part]
        field = ".".join(part for part in parts if not part.startswith("constrained-"))
        words = _FAULTS.get(fault["type"], fault["msg"].replace("{", "{{").replace("}", "}}"))
        faults.setdefault(field, {})[words.format(value=fault["input"], **fault.get("ctx", {}))] = None
    joined = {field: ", or ".join(words) for field, words in faults.items()}
    messages = [f"{field}: {words}" if field not in ("", known) else words for field, words in joined.items()]
    rest = f"; and {len(messages) - _NAMED_FAULTS} more" if len(messages) > _NAMED_FAULTS else ""
    return "; ".join(messages[:_NAMED_FAULTS]) + rest


def unknown_name(kind: str, name: object, options: Iterable[str], otherwise: str | None = None) -> InputError:
    """Make the error for a name that is not in `options`; it offers those that begin with the name, else the nearest
    one, else `otherwise` or all."""
    lowered = {option.lower(): option for option in sorted(options)}
    longer = [option for option in lowered if str(name) and option.startswith(str(name).lower())]
    close = longer
    if not 0 < len(longer) <= _OFFERED:
        close = difflib.get_close_matches(
            str(name).lower(), longer or lowered, n=1, cutoff=0 if longer else 0.6
        )
    otherwise = otherwise or f"choose from: {', '.join(lowered.values())}"
    hint = f"did you mean {' or '.join(repr(lowered[option]) for option in close)}?" if close else otherwise
    return InputError(f"unknown {kind} {str(name)!r}: {hint}")


def hide_secrets(text: str) -> str:
    """Hide users, passwords and queries of the addresses in `text`."""
    return _QUERY.sub(r"\1?…", _USER.sub("…@", text))


def near_path(path: Path) -> str | None:
    """Return the file or folder beside a `path` that does not exist whose name is nearest to it, if any is near."""
    beside = os.listdir(path.parent) if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.75)
    return str(path.with_name(near[0])) if near else None


_said: set[str] = set()


def say_once(message: str) -> None:
    """Warn with `message`, unless it has been said before."""
    if message not in _said:
        _said.add(message)
        warnings.warn(message, stacklevel=2)


def require_report() -> None:
    """Raise `InputError` unless the packages that make a report's page are installed."""
    require_group("report", "matplotlib", "pandas", "jinja2", "scipy", "statsmodels")


def require_group(group: str, *modules: str) -> None:
    """Raise `InputError` naming the optional group to install when one of `modules` is missing."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        names = ", ".join(missing)
        raise InputError(f"missing packages ({names}): run pip install 'diffclip[{group}]'")

"""Shards that lie elsewhere: addresses that fsspec can open (https, s3, gs, hf, file …), and `pipe:COMMAND`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from braceexpand import braceexpand

from diffclip.data.remote_child import PAUSES, ask, never
from diffclip.data.transfer import PIPE
from diffclip.errors import DiffCLIPError, InputError

# Seconds without an answer to a question about a file.
_STALL = 60.0
_REMOTE = re.compile(r"pipe:|file:|[a-z][a-z0-9+.-]*(://|::)", re.IGNORECASE)
_SHARD = re.compile(r"\.(tar(\.\w+)?|tgz)$", re.IGNORECASE)
_PACKED = re.compile(r"\.(gz|bz2|xz|zst|zstd)$", re.IGNORECASE)
_NAME = re.compile(r"[\w.+%-]+\.(?:tar|tgz)[\w.]*", re.IGNORECASE)
# Addresses in a text: what stands before the host, and the query.
_USER = re.compile(r"(?<=://)[^\s/'\"]+@")
_QUERY = re.compile(r"(://[^\s?'\"]*)\?[^\s'\"]+")


def is_remote(spec: str) -> bool:
    """Whether `spec` is an address (`https://…`, `s3://…`, `file:…`, `pipe:COMMAND`), not a path."""
    return _REMOTE.match(spec) is not None


def shown(address: str) -> str:
    """`address`, or a text with addresses in it, for people: without what may be a password or a key.

    Users, passwords and queries are left out, and of a command all but the program and the shard.
    """
    if address.startswith(PIPE):
        words = [word for word in address.removeprefix(PIPE).split() if "=" not in word]
        return f"{PIPE}{' … '.join([*words[:1], *_names(address)])}"
    return _QUERY.sub(r"\1?…", _USER.sub("…@", address))


def base_name(url: str) -> str:
    """The shard's name without its folder, ending in `.tar`, fit for a file."""
    if url.startswith(PIPE):
        name = (_names(url) or ["pipe"])[0]
    else:
        name = url.partition("?")[0].rstrip("/").rpartition("/")[2]
    name = _PACKED.sub("", re.sub(r"[^\w.-]+", "_", name))
    return f"{re.sub(r'[.](tar|tgz)$', '', name, flags=re.IGNORECASE)[-80:]}.tar"


def _names(command: str) -> list[str]:
    """The last word of `command` that looks like the name of a shard, if there is one."""
    return _NAME.findall(_QUERY.sub(r"\1", command))[-1:]


def expand_remote(spec: str, stall: float = _STALL) -> list[str]:
    """The addresses that `spec` names.

    Args:
        spec: an address with brace ranges, with `*`, or that of a folder, which ends in `/` and stands for its
            .tar (.tar.gz, .tar.zst …) files. What is listed comes in natural order: 2.tar before 10.tar.

    Raises:
        InputError: braces that do not pair, an unknown protocol or one whose package is missing, a folder or
            pattern that is not there or without shards. Single addresses are not looked at.
        DiffCLIPError: the place does not answer.
    """
    from diffclip.data.shards import _natural

    try:
        addresses = list(braceexpand(spec))
    except ValueError:
        raise InputError(f"shards {shown(spec)}: the braces do not pair, write a range as {{0..9}}") from None
    places = [url for url in addresses if not url.startswith(PIPE) and (url.endswith("/") or "*" in url)]
    listed = dict(zip(places, _results("list", [{"url": url} for url in places], stall), strict=True))
    found: list[str] = []
    for address in addresses:
        if address not in listed:
            found.append(address)
            continue
        held = _value(listed[address])
        if address.endswith("/"):
            held = [url for url in held if _SHARD.search(url)]
        if not held:
            raise InputError(f"no .tar shards in {shown(address)}: check the address")
        found += sorted(held, key=lambda url: _natural(Path(url)))
    return found


def remote_stamp(url: str) -> str:
    """What changes when the file at `url` does, its size and etag or time; "" where unknown (as for a pipe).

    Raises:
        InputError: it does not exist, or may not be read.
        DiffCLIPError: the place does not answer.
    """
    return str(_value(remote_stamps([url])[0]))


def remote_stamps(urls: Sequence[str], stall: float = _STALL) -> list[str | DiffCLIPError]:
    """`remote_stamp` of each of `urls`, or what went wrong with it; many are asked for at a time."""
    return _results("stamp", [{"url": url} for url in urls], stall)


def read_beside(folder: str, name: str, stall: float = _STALL) -> bytes | None:
    """The file `name` in the remote `folder`; None where it is not, or may not be read.

    Raises:
        DiffCLIPError: the place does not answer.
    """
    if folder.startswith(PIPE):
        return None
    with tempfile.TemporaryDirectory() as made:
        target = Path(made, "file")
        try:
            fetch(f"{folder.rstrip('/')}/{name}", target, stall, unpack=False)
        except InputError:
            return None
        return target.read_bytes()


def fetch(
    url: str,
    target: Path,
    stall: float,
    known: str | None = None,
    unpack: bool = True,
    stopped: Callable[[], bool] = never,
) -> tuple[str, bool]:
    """Copy `url` to `target`, unpacked if it is compressed (gzip, bzip2, xz, zstd).

    Args:
        stall: seconds after which a transfer that brings nothing is given up.
        known: the stamp of a copy that there is already: nothing is copied while it holds.
        stopped: asked all the time; once it is true, `StoppedError` is raised.

    Returns:
        The stamp of the file, and whether there is now a copy at `target`.

    Raises:
        InputError: it does not exist, may not be read, or the disk is full.
        DiffCLIPError: nothing came for `stall` seconds, or the connection was lost time and again. What is at
            `target` is then not whole.
    """
    item = {"url": url, "target": str(target), "known": known, "unpack": unpack}
    [answer] = _results("copy", [item], stall, parts_of(target), stopped)
    stamp, copied = _value(answer)
    return stamp, copied


def parts_of(target: Path) -> tuple[Path, ...]:
    """The files that grow while `fetch` is at work."""
    return target, Path(f"{target}.unpacked")


def _results(
    operation: str,
    items: Sequence[Mapping[str, Any]],
    stall: float,
    watched: tuple[Path, ...] = (),
    stopped: Callable[[], bool] = never,
) -> list[Any]:
    """What `ask` is told for each item: the value, or the error that says what went wrong."""
    answers = ask(operation, items, stall, watched, stopped)
    return [
        answer["value"] if "value" in answer else _error(item["url"], answer["kind"], answer["reason"], stall)
        for item, answer in zip(items, answers, strict=True)
    ]


def _value(answer: Any) -> Any:
    if isinstance(answer, DiffCLIPError):
        raise answer
    return answer


def _error(url: str, kind: str, reason: str, stall: float) -> DiffCLIPError:
    what, why = shown(url), shown(reason)
    if kind == "missing":
        return InputError(f"{what} does not exist: check the address (that of a folder ends with '/')")
    if kind == "forbidden":
        return InputError(f"no permission to read {what} ({why}): check the address and your credentials")
    if kind == "package":
        return InputError(f"{what} needs {why}, which is not installed: run pip install {why}")
    if kind == "space":
        return InputError(f"no space left on device for a copy of {what}: free some or choose another folder")
    if kind == "refused":
        return InputError(f"{what} cannot be read ({why}): check the address")
    if kind == "command":
        return DiffCLIPError(f"{what} failed ({why}): try the command in a shell")
    if kind == "stalled":
        return DiffCLIPError(f"{what} gave nothing for {stall:g} seconds: check the source, or wait longer")
    return DiffCLIPError(f"{what} is lost after {len(PAUSES) + 1} attempts ({why}): check the network")

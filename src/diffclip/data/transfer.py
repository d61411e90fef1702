"""What the child process of `diffclip.data.remote` does: look at remote files, list them, copy them.

It answers each question with one line of JSON, and ends with the process that started it.
"""

from __future__ import annotations

import bz2
import errno
import json
import lzma
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeGuard

import fsspec  # type: ignore[import-untyped, unused-ignore]

from diffclip.errors import unknown

PIPE = "pipe:"
_AT_ONCE = 16
_CHUNK = 1 << 20
# What file systems call the mark that changes with a file's content, the surest first.
_MARKS = (
    *("ETag", "etag", "md5Hash", "Content-MD5", "Digest", "blob_id"),
    *("LastModified", "Last-Modified", "last_modified", "updated", "mtime", "created"),
)


def serve(operation: str, items: Sequence[Mapping[str, Any]], parent: int) -> None:
    """Answer `operation` for each of `items`, as it gets done: `[number, answer]`, see `attempt`."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    # Libraries may print what they like; the answers have this channel for themselves.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = {pool.submit(attempt, operation, item): number for number, item in enumerate(items)}
        for done in as_completed(asked):
            answers.write(json.dumps([asked[done], done.result()]) + "\n")
            answers.flush()
    # A regular end would wait for open connections.
    os._exit(0)


def attempt(operation: str, item: Mapping[str, Any]) -> dict[str, Any]:
    """Do `operation` once: {"value": …}, or {"kind": …, "reason": …} of what went wrong."""
    try:
        return {"value": _OPERATIONS[operation](**item)}
    # Each file system fails with exceptions of its own.
    except Exception as error:
        kind, reason = _explain(error)
        return {"kind": kind, "reason": reason}


class _CommandError(Exception):
    """A command ended with an exit code other than 0."""


def _stamp(url: str) -> str:
    if url.startswith(PIPE):
        return ""
    system, place = _open(url)
    return _stamp_of(system.info(place))


def _list(url: str) -> list[str]:
    system, place = _open(url)
    if "*" in url:
        found = system.glob(place)
    else:
        found = [entry["name"] for entry in system.ls(place, detail=True) if entry["type"] != "directory"]
    return sorted({system.unstrip_protocol(name) for name in found})


def _copy(url: str, target: str, known: str | None, unpack: bool) -> tuple[str, bool]:
    """Copy `url` to `target` unless its stamp is `known`; the stamp, and whether there is a copy."""
    if url.startswith(PIPE):
        stamp = ""
        _run(url.removeprefix(PIPE), target)
    else:
        system, place = _open(url)
        info = system.info(place)
        if info["type"] == "directory":
            raise IsADirectoryError("it is a folder, whose name must end with '/'")
        stamp = _stamp_of(info)
        if known and stamp == known:
            return stamp, False
        progress = fsspec.callbacks.Callback()
        system.get_file(place, target, callback=progress)
        expected = info.get("size") if progress.size is None else progress.size
        arrived = os.path.getsize(target)
        if expected is not None and arrived != expected:
            raise ConnectionError(f"{arrived} of {expected} bytes came")
    if unpack:
        _unpack(Path(target))
    with open(target, "rb") as handle:
        os.fsync(handle.fileno())
    return stamp, True


_OPERATIONS: dict[str, Callable[..., Any]] = {"stamp": _stamp, "list": _list, "copy": _copy}


def _open(url: str) -> tuple[Any, str]:
    """The file system of `url`, and what it calls the file."""
    for protocol in re.findall(r"(?:^|::)([\w.+-]+)(?=::|://)", url):
        if protocol not in fsspec.available_protocols():
            raise unknown("protocol", protocol, fsspec.available_protocols())
    options: dict[str, Any] = {}
    if url.startswith(("http://", "https://")):
        from aiohttp import ClientTimeout

        # aiohttp's own limit is five minutes for the whole of a file. What the server packs is left as it
        # comes, so that its length can be checked.
        client = {"timeout": ClientTimeout(total=None), "auto_decompress": False, "trust_env": True}
        options = {"client_kwargs": client, "encoded": "%" in url}
    return fsspec.core.url_to_fs(url, **options)  # type: ignore[no-any-return]


def _stamp_of(info: Mapping[str, Any]) -> str:
    mark = next((str(info[name]) for name in _MARKS if info.get(name)), "")
    size = info.get("size")
    return "" if size is None and not mark else f"{size} {mark}"


def _run(command: str, target: str) -> None:
    # Not webdataset's gopen: it waits for the command without a limit, cannot kill what the shell has
    # started, and leaves the command's complaints on the terminal.
    with open(target, "wb") as sink, tempfile.TemporaryFile() as said:
        code = subprocess.run(
            command, shell=True, stdin=subprocess.DEVNULL, stdout=sink, stderr=said, check=False
        ).returncode
        said.seek(max(0, said.seek(0, os.SEEK_END) - 4096))
        lines = said.read().decode(errors="replace").split("\n")
    if code:
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it says nothing")
        raise _CommandError(f"exit code {code}: {last}")


def _unpack(packed: Path) -> None:
    """Replace `packed` by its content where it begins as a compressed file does, whatever its name.

    Not by fsspec's readers: the one of zstd takes a file that was cut short for a whole one.

    Raises:
        EOFError: it is cut short.
    """
    with packed.open("rb") as source:
        head = source.read(10)
        make = next((make for magic, make in _UNPACKERS if re.match(magic, head, re.DOTALL)), None)
        if make is None:
            return
        source.seek(0)
        plain = Path(f"{packed}.unpacked")
        with plain.open("wb") as sink:
            unpacker = make()
            while chunk := source.read(_CHUNK):
                while chunk:
                    if unpacker.eof:
                        # Several streams may follow each other, with zeros between and after them.
                        chunk = chunk.lstrip(b"\0")
                        unpacker = make() if chunk else unpacker
                        if not chunk:
                            break
                    sink.write(unpacker.decompress(chunk))
                    chunk = unpacker.unused_data if unpacker.eof else b""
    if not unpacker.eof:
        raise EOFError("what is packed in it is cut short")
    os.replace(plain, packed)


def _gzip() -> Any:
    return zlib.decompressobj(wbits=31)


def _zstd() -> Any:
    import zstandard  # type: ignore[import-not-found, unused-ignore]

    return zstandard.ZstdDecompressor().decompressobj()


_UNPACKERS: tuple[tuple[bytes, Callable[[], Any]], ...] = (
    (rb"\x1f\x8b", _gzip),
    (rb"BZh[1-9]1AY&SY", bz2.BZ2Decompressor),
    (rb"\xfd7zXZ\x00", lzma.LZMADecompressor),
    (rb"\x28\xb5\x2f\xfd", _zstd),
)


def _is_of_http(error: BaseException | None) -> TypeGuard[BaseException]:
    return isinstance(error, ConnectionError) or type(error).__module__.startswith("aiohttp.")


def _explain(error: BaseException) -> tuple[str, str]:
    """What kind of failure it is (`diffclip.data.remote` knows them), and its reason."""
    # Of a file that it cannot look at, for whatever reason, fsspec's http says that it is not there.
    if isinstance(error, FileNotFoundError) and _is_of_http(error.__cause__):
        error = error.__cause__
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ImportError):
        cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
        return "package", (cause.name or reason).partition(".")[0]
    if isinstance(error, _CommandError):
        return "command", reason
    response = getattr(error, "response", None)
    code = getattr(error, "status", None) or getattr(error, "code", None)
    status = code or getattr(response, "status_code", None)
    if hasattr(error, "message") and status:
        reason = f"{status} {error.message}"
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return "space", reason
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return "missing", reason
    if isinstance(error, PermissionError) or status in (401, 403, 407):
        return "forbidden", reason
    if type(error).__name__ == "NoCredentialsError":
        return "forbidden", reason
    if isinstance(status, int) and 400 <= status < 500 and status not in (408, 425, 429):
        return "refused", reason
    # Certificates and addresses that cannot be are among the ValueErrors.
    if isinstance(error, ValueError | NotImplementedError | IsADirectoryError):
        return "refused", reason
    return "lost", reason


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)

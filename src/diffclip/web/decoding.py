"""Uploads are decoded in a process of their own, which may take so much time and memory and no more.

A small file can keep a decoder busy for hours, and no thread can be stopped from outside. The process stays between
pictures, since its start costs more than most of them.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import signal
import sys
import warnings
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from PIL import Image

from diffclip.data.images import read_image
from diffclip.errors import InputError
from diffclip.web.uploads import MAX_PIXELS

SECONDS = 10.0
"""For one picture."""
_MEMORY = 4 * 2**30
_START = 60.0
"""Seconds that the process may take to start."""


def decode(content: bytes, name: str) -> Image.Image:
    """The picture in the bytes of a file, RGB, decoded here.

    Raises:
        InputError: it is above `MAX_PIXELS`, or cannot be read; the message calls it `name`.
    """
    return read_image(content, name, max_pixels=MAX_PIXELS)


class Decoder:
    """`decode` in a process that is killed when a picture takes longer than `seconds`; for one thread at a time."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._ready = False
        self._held: tuple[BaseProcess, Connection] | None = None

    def start(self) -> Connection:
        """Start the process, where there is none, without waiting for it; what it is spoken to through."""
        if self._held is None:
            context = multiprocessing.get_context("spawn")
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), name="decoder", daemon=True)
            process.start()
            theirs.close()
            self._held, self._ready = (process, ours), False
        return self._held[1]

    def close(self) -> None:
        """Kill the process; the next picture starts another."""
        if self._held is not None:
            process, pipe = self._held
            self._held = None
            pipe.close()
            process.kill()
            process.join()
            process.close()

    def decode(self, content: bytes, name: str) -> Image.Image:
        """As the function `decode`.

        Raises:
            InputError: as there, or it takes too long or too much memory.
        """
        try:
            return self._decode(content, name)
        except TimeoutError:
            self.close()
            self.start()
            raise InputError(
                f"{name} took too long to read (over {self._seconds:g} s): save it again in a simpler form"
            ) from None
        except (EOFError, OSError):
            self.close()
            self.start()
            raise InputError(f"{name} cannot be read: its decoder stopped") from None
        except InputError:
            raise
        except BaseException:
            # what is half read would be taken for the next picture
            self.close()
            raise

    def _decode(self, content: bytes, name: str) -> Image.Image:
        pipe = self.start()
        if not self._ready:
            _receive(pipe, _START)
            self._ready = True
        pipe.send_bytes(json.dumps(name).encode())
        pipe.send_bytes(content)
        # JSON and pixels, as a decoder that was taken over could put anything into a pickle
        told = json.loads(_receive(pipe, self._seconds))
        if isinstance(told, str):
            raise InputError(told)
        return Image.frombytes("RGB", tuple(told), _receive(pipe, self._seconds))


def _receive(pipe: Connection, seconds: float) -> bytes:
    if not pipe.poll(seconds):
        raise TimeoutError
    return pipe.recv_bytes()


def _work(pipe: Connection) -> None:
    """What the process does, until the other end is closed."""
    # Ctrl-C reaches all processes of a terminal, and this one ends with the page
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.filterwarnings("ignore")
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(EOFError, OSError):
        pipe.send_bytes(b"ready")
        while True:
            name, content = json.loads(pipe.recv_bytes()), pipe.recv_bytes()
            try:
                picture = decode(content, name)
            except InputError as error:
                pipe.send_bytes(json.dumps(str(error)).encode())
                continue
            pipe.send_bytes(json.dumps(picture.size).encode())
            pipe.send_bytes(picture.tobytes())

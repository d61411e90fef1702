"""Serve the page from this machine: an address of one's own, one process, no connection to anywhere else."""

from __future__ import annotations

import errno
import ipaddress
import os
import signal
import socket
import sys
import threading
import warnings
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from diffclip.errors import InputError
from diffclip.model_source import Loaded
from diffclip.web.place import uploads_folder
from diffclip.web.uploads import MAX_BYTES

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_CONNECTIONS = 256
_SESSIONS = 200


def bind(host: str, port: int) -> socket.socket:
    """A socket at `host` and `port` (0: a free one).

    Raises:
        InputError: the port is taken or reserved, or `host` is no address of this machine.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise InputError(
            f"--host {host} is no address: use 127.0.0.1, or 0.0.0.0 for every network"
        ) from None
    except OverflowError:
        raise InputError(f"--port {port} is no port: use 0 to 65535") from None
    bound = socket.socket(family, kind)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise InputError(
                f"port {port} is taken: stop what uses it, or choose another with --port"
            ) from None
        if error.errno == errno.EACCES:
            raise InputError(
                f"port {port} is reserved by the system: choose one above 1023 with --port"
            ) from None
        raise InputError(f"cannot use --host {host}: {os.strerror(error.errno or 0)}") from None
    return bound


def is_local(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def local_names(host: str, bound: socket.socket) -> frozenset[str]:
    """What a page that only this machine reaches may be called by, with `host` and the address of `bound`."""
    return _LOCAL_NAMES | {host.lower(), bound.getsockname()[0]}


def address_of(bound: socket.socket) -> str:
    """The page's address for a browser on this machine."""
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def serve(
    bound: socket.socket,
    models: Sequence[tuple[str, Loaded]],
    folder: Path | None,
    browser: bool,
    hosts: frozenset[str] | None,
) -> None:
    """Answer at `bound` until the process is asked to stop.

    Args:
        bound: see `bind`; closed in the end.
        models: one or two, each with where it is from.
        folder: pictures to search; their index is brought up to date meanwhile.
        browser: open the page there, where this machine has a screen.
        hosts: names that this page may be asked for by, None for any.

    Raises:
        InputError: `folder` is none, or holds no picture.
        KeyboardInterrupt: SIGINT, SIGTERM or SIGHUP, when all is put away.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)
        # under nohup it is ignored, and stays so
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, lambda number, frame: signal.raise_signal(signal.SIGTERM))
    # of a damaged picture its visitor is told, on the page
    warnings.filterwarnings("ignore", module=r"PIL\.")
    with bound, uploads_folder() as uploads:
        _settle(uploads)
        from diffclip.web.decoding import Decoder
        from diffclip.web.folder import SearchedFolder
        from diffclip.web.names import shown_models
        from diffclip.web.page import build
        from diffclip.web.studio import new_studio

        shown = shown_models(models)
        searched = SearchedFolder(folder, [(one.name, loaded) for one, loaded in shown]) if folder else None
        decoder = Decoder()
        decoder.start()
        try:
            page = build(new_studio(shown, uploads, searched, decoder))
            if searched:
                searched.start()
            _run(page, bound, uploads, hosts, browser)
        finally:
            decoder.close()
            if searched:
                searched.close()


def _settle(uploads: Path) -> None:
    """gradio's settings from the environment could open the page to others, or call home."""
    for name in [name for name in os.environ if name.startswith("GRADIO_")]:
        del os.environ[name]
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(uploads)
    # asks for no models, and must not report that it was imported either
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"


def _run(page: Any, bound: socket.socket, uploads: Path, hosts: frozenset[str] | None, browser: bool) -> None:
    import logging

    import gradio as gr
    import uvicorn
    from fastapi import FastAPI

    from diffclip.web.guard import Guard
    from diffclip.web.page import SCRIPT, STYLE
    from diffclip.web.patience import ImpatientProtocol
    from diffclip.web.sessions import Sessions

    # as after `launch`: until then gradio takes any file's name in a request for one of its own
    page.has_launched = page.is_running = True
    page.state_session_capacity = _SESSIONS
    fonts = [gr.themes.Font(name) for name in ("system-ui", "-apple-system", "Segoe UI", "sans-serif")]
    mono = [gr.themes.Font(name) for name in ("ui-monospace", "Menlo", "monospace")]
    app = gr.mount_gradio_app(
        FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
        page,
        path="/",
        footer_links=[],
        run_history=False,
        allowed_paths=[],
        show_error=False,
        max_file_size=MAX_BYTES,
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=gr.themes.Base(primary_hue="blue", neutral_hue="slate", font=fonts, font_mono=mono),
        css=STYLE,
        head=f"<script>{SCRIPT}</script>",
    )
    logger = logging.getLogger("uvicorn.error")

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            address = address_of(bound)
            print(f"diffclip: the page is at {address} (Ctrl-C stops it)", file=sys.stderr, flush=True)
            if browser and _has_screen():
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # an open page waits for news to its end, which is no error
            logger.setLevel(logging.CRITICAL)
            await super().shutdown(sockets)

    config = uvicorn.Config(
        Guard(app, uploads, Sessions(page._queue), hosts),
        http=ImpatientProtocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    Server(config).run(sockets=[bound])


def _has_screen() -> bool:
    """Whether a browser would open in a window, and not in the terminal."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt

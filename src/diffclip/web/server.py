"""Serve the page with gradio's server: by default for this machine only, and without connections to other hosts."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from diffclip.errors import InputError
from diffclip.sources.load import Loaded

_POLICY = (
    # gradio's page would load a script and fonts from other hosts; this makes the browser refuse them
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; object-src 'none'; base-uri 'self'; form-action 'self'"
)


def pick_port(host: str, port: int) -> int:
    """Check before models are loaded that a server can listen at `host` and `port`; 0 picks a free port. A port that is
    taken or reserved, or a `host` that is not an address of this machine, raises `InputError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise InputError(
            f"cannot listen at --host {host} --port {port} ({error.strerror}): choose another --port, and as --host "
            "127.0.0.1, or 0.0.0.0 for every network"
        ) from None


def serve(page: AbstractContextManager[str]) -> None:
    """Keep the page of `serve_in_background` open until the process is asked to stop."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # nohup makes the process ignore that its terminal closes: keep it so
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    with page as address:
        print(f"diffclip: the page is at {address} (Ctrl-C stops it)", file=sys.stderr, flush=True)
        threading.Event().wait()


@contextmanager
def serve_in_background(
    models: Sequence[tuple[str, Loaded]],
    host: str,
    port: int,
    auth: tuple[str, str] | None = None,
    browser: bool = False,
) -> Iterator[str]:
    """Serve the page in threads while the block runs, and yield its address.

    Args:
        models: one or two, each with its source.
        auth: a name and a password that visitors must give.
        browser: open the page in a browser if this machine has a screen.
    """
    # gradio's settings from the environment could open the page to others
    for name in [name for name in os.environ if name.startswith("GRADIO_")]:
        del os.environ[name]
    # gradio asks the page itself whether it is up, which must not go through a proxy
    direct = ["localhost" if host == "0.0.0.0" else host]
    direct += filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY")])
    os.environ |= dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join(direct))
    with tempfile.TemporaryDirectory(prefix="diffclip-explore-") as uploads, warnings.catch_warnings():
        os.environ |= {"GRADIO_TEMP_DIR": uploads, "HF_HUB_DISABLE_TELEMETRY": "1"}
        # the page itself reports an uploaded image that is damaged
        warnings.filterwarnings("ignore", module=r"PIL\.")
        import gradio as gr

        from diffclip.web.page import MAX_MEGABYTES, SCRIPT, STYLE, build
        from diffclip.web.results import page_models

        named = page_models(models)
        fonts = [gr.themes.Font(name) for name in ("system-ui", "-apple-system", "Segoe UI", "sans-serif")]
        mono = [gr.themes.Font(name) for name in ("ui-monospace", "Menlo", "monospace")]
        page = build(named)
        has_screen = sys.platform != "linux" or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())
        try:
            _, address, _ = page.launch(
                server_name=f"[{host}]" if ":" in host else host,  # as in an address
                server_port=port,
                inbrowser=browser and has_screen,
                auth=auth,
                max_file_size=MAX_MEGABYTES * 2**20,
                share=False,
                quiet=True,
                prevent_thread_lock=True,
                ssr_mode=False,
                enable_monitoring=False,
                run_history=False,
                footer_links=[],
                theme=gr.themes.Base(primary_hue="blue", neutral_hue="slate", font=fonts, font_mono=mono),
                css=STYLE,
                head=f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><script>{SCRIPT}</script>',
            )
            yield address
        finally:
            page.close(verbose=False)

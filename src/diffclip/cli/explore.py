"""`diffclip explore`: serve a page that shows where one or two models look in images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffclip.cli.console import say
from diffclip.errors import InputError, require_group
from diffclip.files import printable
from diffclip.sources.load import load_with_origin
from diffclip.sources.registry import MODEL_HELP, find_model

_DEMO = (Path("runs/demo/CLIP"), Path("runs/demo/DiffCLIP"))
_AUTH = "Ask visitors for this name and password."


def explore(
    model: Annotated[list[str] | None, typer.Option(help=f"{MODEL_HELP} Give one or two.")] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 lets other machines in: set --auth too.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 7860,
    auth: Annotated[
        str | None, typer.Option(envvar="DIFFCLIP_AUTH", metavar="<name:password>", help=_AUTH)
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Open a page to see where one or two models look in your images.

    Example: diffclip explore --model runs/demo/CLIP --model runs/demo/DiffCLIP

    Without --model the page shows the models of `diffclip demo`. Only this machine reaches it, unless --host is given.
    """
    sources = model or [str(run) for run in _DEMO if (run / "checkpoints").is_dir()]
    if not sources:
        raise InputError("there is no model yet: run `diffclip demo` first, or give one with --model")
    if len(sources) > 2:
        raise InputError(f"{len(sources)} models are too many: the page shows one or two")
    for source in sources:
        find_model(source)
    name, colon, password = (auth or "").partition(":")
    if auth is not None and not (name and colon and password):
        raise InputError("--auth has no name or no password: write it as NAME:PASSWORD")
    require_group("web", "gradio", "matplotlib")
    print(f"explore: loading PyTorch and {', '.join(map(printable, sources))}", flush=True)
    from diffclip.web.server import pick_port, serve, serve_in_background

    port = pick_port(host, port)
    loaded = [(source, load_with_origin(source)) for source in sources]
    if auth is None and host not in ("127.0.0.1", "::1", "localhost"):
        say(
            f"diffclip: WARNING: anyone who reaches port {port} of this machine can use the page: "
            "set a password with --auth"
        )
    serve(serve_in_background(loaded, host, port, (name, password) if auth else None, browser))

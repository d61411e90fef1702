"""`diffclip explore`: a page on which two models can be looked at."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from diffclip.errors import InputError, require_group
from diffclip.model_source import MODEL_HELP, load_for_use

_DEMO = (Path("runs/demo/CLIP"), Path("runs/demo/DiffCLIP"))


def explore(
    model: Annotated[
        list[str] | None,
        typer.Option(help=f"{MODEL_HELP} Once or twice; by default those of `diffclip demo`."),
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Pictures to search, at any depth.")] = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; 0.0.0.0 lets the network in, which has no password to pass.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 7860,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Open a page to see where one or two models look in your pictures, and to search a folder.

    Example: diffclip explore --model runs/demo/CLIP --model runs/demo/DiffCLIP --folder photos/

    Without a model it shows those of `diffclip demo`. The page is for this machine alone unless --host says otherwise.
    """
    sources = _sources(model or [])
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder} is no folder: give --folder one with pictures")
    require_group("web", "gradio", "matplotlib")
    from diffclip.web.server import bind, is_local, local_names, serve

    bound = bind(host, port)
    loaded = [(source, load_for_use(source)) for source in sources]
    local = is_local(host)
    if not local:
        what = f" and find pictures of {folder}" if folder else ""
        print(
            f"diffclip: WARNING: whoever reaches port {bound.getsockname()[1]} of this machine at {host} can use the "
            f"page{what}: it has no password",
            file=sys.stderr,
        )
    serve(bound, loaded, folder, browser, local_names(host, bound) if local else None)


def _sources(given: list[str]) -> list[str]:
    """The models given, or those of the demonstration.

    Raises:
        InputError: more than two, or none and there is no demonstration.
    """
    if len(given) > 2:
        raise InputError(f"{len(given)} models are too many: the page shows one or two")
    if given:
        return given
    if all((run / "checkpoints").is_dir() for run in _DEMO):
        return [str(run) for run in _DEMO]
    raise InputError("there is no model yet: run `diffclip demo` first, or give one with --model")

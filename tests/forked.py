"""Start processes without importing torch first: they are forked from a server that has imported it."""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

PRELOADED = ("lightning", "open_clip", "diffclip.cli.main", "diffclip.study.runs")


def begin(
    log: Path, function: Callable[..., object], *arguments: object, **variables: str
) -> ForkServerProcess:
    """Call a module-level function in a process with this environment and `variables`; its output goes to `log`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    process = context.Process(target=_call, args=(log, {**os.environ, **variables}, function, arguments))
    process.start()
    return process


def _call(
    log: Path, environment: dict[str, str], function: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    os.environ.update(environment)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    function(*arguments)

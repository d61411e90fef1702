"""Register the commands, and print failures in one line.

Nothing here or at the top of a command's file imports torch, so that `--help` answers at once.
"""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption
from typer.exceptions import TyperException

from diffclip.cli.attend import attend
from diffclip.cli.bench import bench
from diffclip.cli.benchmark import SETTINGS, benchmark
from diffclip.cli.classify import classify
from diffclip.cli.console import with_plugins
from diffclip.cli.convert import convert
from diffclip.cli.data import data
from diffclip.cli.demo import demo
from diffclip.cli.evaluate import evaluate
from diffclip.cli.explore import explore
from diffclip.cli.push import push
from diffclip.cli.report import report
from diffclip.cli.study import study
from diffclip.cli.train import train
from diffclip.cli.vlm import vlm
from diffclip.data.workers import describe_dead_worker
from diffclip.errors import DiffCLIPError, DivergedError, RankError, explain
from diffclip.files import printable
from diffclip.version import __version__

_INTERRUPTED = 130  # also what typer returns when it has caught Ctrl-C itself
_PLACEHOLDERS = {str: "<text>", int: "<number>", float: "<number>", Path: "<path>", bool: ""}


class Command(TyperCommand):
    """A command with help of one look: arguments in capitals; options with <text>, <number>, <path> or a choice."""

    def __init__(self, *args: Any, help: str | None = None, **settings: Any) -> None:
        paragraphs = inspect.cleandoc(help or "").split("\n\n")
        super().__init__(*args, help="\n\n".join(" ".join(text.split()) for text in paragraphs), **settings)
        for param in self.params:
            if isinstance(param, TyperArgument):
                param.metavar = param.metavar or param.name.upper()
            elif isinstance(param, TyperOption) and param.metavar is None:
                kind = param.type_descriptor.annotation
                param.metavar = _PLACEHOLDERS.get(next(iter(get_args(kind)), kind))


app = typer.Typer(
    name="diffclip",
    help="CLIP with differential attention, beside the plain CLIP that it is compared with.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, train, study, evaluate, classify, attend, explore, report, convert, push, bench):
    app.command(command.__name__)(with_plugins(command))

app.command("benchmark", context_settings=SETTINGS)(with_plugins(benchmark))

app.add_typer(data, name="data")
app.add_typer(vlm, name="vlm")
for registered in (*app.registered_commands, *data.registered_commands, *vlm.registered_commands):
    registered.cls = Command


def _version(wanted: bool) -> None:
    if wanted:
        print(f"diffclip {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def main() -> NoReturn:
    """Run the command line.

    Exit codes: 0 for success; 2 for bad input and errors of the operating system, 75 for a stopped run and 130 for
    Ctrl-C (with one line on stderr); 1 for anything else.
    """
    warnings.formatwarning = lambda message, *_, **__: f"diffclip: {message}\n"  # without paths of sources
    try:
        code = app(standalone_mode=False)
        _flush_output()
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BrokenPipeError:  # the reader of our output closed the pipe, as `head` does
        with suppress(OSError):
            _flush_output()
        sys.exit(1)
    except Exception as error:
        failure = _describe_failure(error)
        if failure is None:
            raise
        rank = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0"
        # torchrun and srun show the lines of all processes: an error that all have is printed once a node
        is_common = isinstance(error, DiffCLIPError) and not isinstance(error, RankError)
        if is_common and rank != "0" and "DIFFCLIP_LAUNCHED_BY" not in os.environ:
            sys.exit(failure[1])
        _leave(*failure, diverged=isinstance(error, DivergedError))
    if code == _INTERRUPTED:
        _leave("interrupted", code)
    sys.exit(code if isinstance(code, int) else 0)


def _describe_failure(error: Exception) -> tuple[str, int] | None:
    """Return the line and the exit code for an expected failure; None for a fault of this program."""
    from pydantic import ValidationError

    if isinstance(error, TyperException):
        cause = error.__cause__
        if isinstance(error, typer.BadParameter) and error.param and isinstance(cause, ValidationError):
            return f"{error.param.opts[0]}: {explain(cause)}", error.exit_code
        # typer has printed the help of a group that was given no command, and raises an error without a message
        command = getattr(getattr(error, "ctx", None), "command_path", "diffclip")
        return error.format_message() or f"no command given: see {command} --help", error.exit_code
    if isinstance(error, DiffCLIPError):
        return str(error), error.exit_code
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        if error.filename is None:
            return f"cannot read or write: {reason}; check where the output goes and the space there", 2
        return f"cannot read or write {error.filename}: {reason}; check the path and its permissions", 2
    if isinstance(error, RuntimeError) and (death := describe_dead_worker()) is not None:
        return death, DiffCLIPError.exit_code
    if isinstance(error, ValidationError):
        return f"{error.title}: {explain(error)}", 2
    return None


def _flush_output() -> None:
    """Write the buffered output. If that fails, discard it and raise: else Python would fail to write it at exit."""
    if sys.stdout is None:  # the caller closed it
        return
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _leave(message: str, code: int, diverged: bool = False) -> NoReturn:
    with suppress(OSError):
        _flush_output()
    line = printable(" ".join(message.split()))
    if "DIFFCLIP_LAUNCHED_BY" in os.environ:  # the launcher process prints the line
        from diffclip.training.launch import pass_last_line

        pass_last_line(line, code, diverged=diverged)
    else:
        print(f"diffclip: {line}", file=sys.stderr)
    sys.exit(code)

"""`diffclip`: the table of commands, and how failures are said.

Nothing here or at the top of a command's file imports torch, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

import diffclip
from diffclip.cli.classify import classify
from diffclip.cli.convert import convert
from diffclip.cli.demo import demo
from diffclip.cli.evaluate import evaluate
from diffclip.cli.make_scenes import make_scenes
from diffclip.cli.report import report
from diffclip.cli.train import train
from diffclip.errors import DiffCLIPError, InputError

app = typer.Typer(
    name="diffclip",
    help="CLIP with differential attention, beside the plain CLIP that it is compared with.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, train, evaluate, classify, report, convert):
    app.command(command.__name__)(command)

data = typer.Typer(help="Make data.", no_args_is_help=True)
data.command("make-scenes")(make_scenes)
app.add_typer(data, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"diffclip {diffclip.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None: ...


def main() -> NoReturn:
    """Run the command line. Exit codes: 0, 2 for bad input (one line on stderr), 1 for anything else."""
    try:
        code = app(standalone_mode=False)
    except (InputError, TyperException) as error:
        message = error.format_message() if isinstance(error, TyperException) else str(error)
        _leave(message, error.exit_code if isinstance(error, TyperException) else 2)
    except DiffCLIPError as error:
        _leave(str(error), 1)
    except KeyboardInterrupt:
        _leave("interrupted", 130)
    except BrokenPipeError:  # the reader of our output left, as `head` does
        sys.stderr.close()
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _leave(message: str, code: int) -> NoReturn:
    line = " ".join(message.split())
    print(f"diffclip: {line or 'no command given: see diffclip --help'}", file=sys.stderr)
    sys.exit(code)

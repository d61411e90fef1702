"""Run the `diffclip` command in this process: a new process would need seconds for its imports."""

import contextlib
import io
import sys
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

from typer.testing import CliRunner

from diffclip.cli.main import app, main


def call(*arguments: object) -> tuple[str, str]:
    """Return stdout and stderr of `diffclip ARGUMENTS`; raise its exception again."""
    words = [str(argument) for argument in arguments]
    with mock.patch.object(sys, "argv", ["diffclip", *words]):
        result = CliRunner().invoke(app, words)
    if result.exception:
        raise result.exception
    return result.stdout, result.stderr


def diffclip_command(*arguments: object, cwd: Path | None = None) -> CompletedProcess[str]:
    """Run `diffclip ARGUMENTS` in `cwd`; return its exit code, stdout and stderr."""
    words = [str(argument) for argument in arguments]
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd or Path.cwd()),
        mock.patch.object(sys, "argv", ["diffclip", *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return CompletedProcess(words, code, out.getvalue(), err.getvalue())

"""One look for the help of all commands: paragraphs fill the line, and placeholders have one style."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_args

from typer.core import TyperArgument, TyperCommand, TyperOption

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

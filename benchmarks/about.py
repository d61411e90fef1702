"""What the programs share: options, a description of the machine, and files."""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from diffclip.files import write_text


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Make a parser whose help begins with a program's docstring as it stands."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_common_options(parser: argparse.ArgumentParser, seconds: float | None = None) -> None:
    """--device, --threads, --output, and --seconds (to spend on measuring) where a default is given."""
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=2, help="of torch on a CPU")
    if seconds is not None:
        parser.add_argument("--seconds", type=float, default=seconds, help="to spend on measuring, about")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder")


def about(program: str, options: argparse.Namespace) -> dict[str, Any]:
    """The command (without where it writes to) and the machine."""
    arguments = list(sys.argv[1:])
    if "--output" in arguments:
        place = arguments.index("--output")
        del arguments[place : place + 2]
    cuda = torch.device(options.device).type == "cuda"
    described: dict[str, Any] = {
        "command": " ".join(["python -m", f"benchmarks.{program}", *arguments]),
        "device": torch.cuda.get_device_name(options.device) if cuda else platform.machine(),
        "threads": options.threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    return described | ({"triton": _triton(), "cuda": torch.version.cuda} if cuda else {})


def _triton() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def largest(values: Iterable[float]) -> float:
    """The largest value; a NaN counts as larger than every number, and is returned where there is no value."""
    return max(values, key=lambda value: math.inf if value != value else value, default=math.nan)


def write_json(file: Path, content: object) -> None:
    """Write `content`, whole or not at all."""
    write_text(file, json.dumps(content, indent=1) + "\n")

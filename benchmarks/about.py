"""What the programs share: options, a description of the machine, and files."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from diffclip.files import write_text


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
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
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


def write_json(file: Path, content: object) -> None:
    """Write `content`, whole or not at all."""
    write_text(file, json.dumps(content, indent=1) + "\n")

"""The package with the distributions alone that its metadata asks for: no test brings another one along."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HIDE = """
import importlib.metadata, sys
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

def add(name, extras):
    found = {(canonicalize_name(name), extra) for extra in ["", *extras]} - needed
    needed.update(found)
    for one in map(Requirement, importlib.metadata.requires(name) or [] if found else []):
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for _, extra in found):
            add(one.name, one.extras)

needed = set()
add("diffclip", EXTRAS)
for module, owners in importlib.metadata.packages_distributions().items():
    if not any((canonicalize_name(owner), "") in needed for owner in owners):
        sys.modules[module] = None  # an import of it fails
assert sys.modules["pytest"] is None
from_name = importlib.metadata.Distribution.from_name

def needed_from_name(name):
    if (canonicalize_name(name), "") not in needed:
        raise importlib.metadata.PackageNotFoundError(name)
    return from_name(name)

importlib.metadata.Distribution.from_name = needed_from_name  # libraries ask for what else is there
"""
BASE = """
from typer.testing import CliRunner
from diffclip import create_model
from diffclip.cli.main import app
assert CliRunner().invoke(app, ["demo", "--help"]).exit_code == 0
create_model("DiffCLIP-ViT-B-16")
"""


def test_nothing_is_imported_that_is_not_required(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "EXTRAS = []" + HIDE + BASE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]

"""Import the package and run the whole demo with only the distributions that its metadata requires."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HIDE = """
import importlib.metadata, sys
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

def add(name, extras):
    found = {(canonicalize_name(name), extra) for extra in ["", *extras]} - needed
    needed.update(found)
    for requirement in map(Requirement, importlib.metadata.requires(name) or [] if found else []):
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for _, extra in found):
            add(requirement.name, requirement.extras)

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
PLUGIN_PAGE = Path(__file__).parents[1] / "docs" / "plugin.md"
SMALLER = """
import sys
import diffclip.demo
from diffclip.cli.main import main

SMALL = ["batch_size=32", "architecture.vision.patch_size=16"]
diffclip.demo._TRAIN, diffclip.demo._VAL, diffclip.demo._TEST = 1500, 100, 300
diffclip.demo._EXAMPLES = diffclip.demo._ATTENTION_IMAGES = 2
if "--plugin" in sys.argv:  # no model has to learn
    SMALL += ["epochs=1", "warmup_epochs=0"]
    diffclip.demo._TRAIN, diffclip.demo._TEST = 200, 100
    diffclip.demo._EXAMPLES = diffclip.demo._ATTENTION_IMAGES = 1
read = diffclip.demo.read_recipe
diffclip.demo.read_recipe = lambda name, changes: read(name, [*changes, *SMALL])
main()
"""


def test_the_package_imports_only_its_required_distributions(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "EXTRAS = []" + HIDE + BASE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]


def demo(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run a smaller demo with only the distributions that `diffclip[train]` requires."""
    program = 'EXTRAS = ["train"]' + HIDE + SMALLER
    command = [sys.executable, "-c", program, "demo", "--folder", str(folder), *more]
    return subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, timeout=3000)


@pytest.mark.slow(minutes=3)
def test_the_demo_trains_both_models_far_above_chance_and_is_reused(tmp_path: Path) -> None:
    first = demo(tmp_path / "demo")
    assert first.returncode == 0, first.stderr[-2000:]
    page = (tmp_path / "demo" / "report.html").read_text()
    sections = ("Not learned", "Zero-shot by shape", "Retrieved examples", "Attention", "How it was made")
    for section in sections:
        assert section in page
    assert not re.search(r'(src|href)="https?:', page)
    for model in ("CLIP", "DiffCLIP"):
        lines = (tmp_path / "demo" / model / "results.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        values = {(record["metric"], record["dataset"]): record["value"] for record in records}
        # chance: 1.7 % for images among 300 and for captions, of which 5 of 1,500 are right; 9.1 % for 11 colors
        assert values["image_retrieval_recall@5", "captions"] > 0.1
        assert values["text_retrieval_recall@5", "captions"] > 0.1
        assert values["acc1", "colours"] > 0.14  # three standard deviations; seeds end between 0.14 and 0.5
        assert {record["model"] for record in records} == {model}
    # one run of each model supports no conclusion
    for text in (page, first.stdout):
        assert "One training run each" in text
        assert 'class="better"' not in text
        assert 'class="worse"' not in text
    assert not re.search(r"\bbetter\b|\bworse\b|\bp\b", first.stdout)
    checkpoint = (tmp_path / "demo" / "CLIP" / "checkpoints" / "last").readlink()

    second = demo(tmp_path / "demo")
    assert second.returncode == 0, second.stderr[-2000:]
    assert second.stdout.count("reusing") == 1  # the scenes; finished runs are left as they are
    assert (tmp_path / "demo" / "CLIP" / "checkpoints" / "last").readlink() == checkpoint


@pytest.mark.slow(minutes=1)
def test_the_demo_trains_the_model_of_a_plugin_beside_both(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text(re.findall(r"^```python\n(.*?)^```$", PLUGIN_PAGE.read_text(), re.S | re.M)[0])
    done = demo(tmp_path / "demo", "--plugin", str(plugin), "--seeds", "2")
    assert done.returncode == 0, done.stderr[-2000:]
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "CLIP, DiffCLIP and CLIP-relu on the built-in scenes" in page
    assert "--seeds 2 --plugin mine.py" in page
    assert re.search(r"Zero-shot by shape: CLIP [\d.]+, [\d.]+ %; DiffCLIP [\d.]+, [\d.]+ %; CLIP-relu", page)
    for text in (page, done.stdout):
        assert "CLIP-relu" in text
        assert "One run each" not in text

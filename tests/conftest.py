"""What many tests share: threads, and where the measuring data lies if it is there."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
# open_clip and timm write nothing, but hub clients look for the network unless told not to
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

# Triton's interpreter runs the kernels on the CPU; its functions ask for it when they are defined, so before any import
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)

SHARED = Path(__file__).resolve().parents[1].parent / "shared"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: begun last, they would leave one of two processes with nothing to do."""

    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.slow(minutes=2))

    def minutes(item: pytest.Item) -> float:
        mark = item.get_closest_marker("slow")
        return mark.kwargs.get("minutes", 0) if mark else 0

    items.sort(key=minutes, reverse=True)


def pytest_collection_finish() -> None:
    """What was imported stays: statsmodels collects garbage in each Holm correction, a quarter of a second of ours."""
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A line for each reason to skip tests, with their number."""
    reports = terminalreporter.stats.get("skipped", ())
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    for reason, count in reasons.items():
        terminalreporter.write_line(f"{count} skipped: {reason}")


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Indexes of shards, features and drawn sets stay out of the user's cache folder."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of golden values and real data beside the repository; the test skips where there is none."""
    if not SHARED.is_dir():
        pytest.skip("no shared folder beside the repository")
    return SHARED


def _save_model(folder: Path, seed: int = 0) -> Path:
    """A differential model of a few thousand weights, saved to `folder`."""
    import diffclip

    config = diffclip.CLIPConfig(
        embed_dim=16,
        vision=diffclip.VisionConfig(
            image_size=16, patch_size=8, width=16, layers=1, heads=2, attention="differential"
        ),
        text=diffclip.TextConfig(context_length=12, width=16, layers=1, heads=2, attention="differential"),
    )
    diffclip.save_weights(diffclip.CLIP(config, seed=seed), folder)
    return folder


@pytest.fixture
def save_model() -> Callable[..., Path]:
    return _save_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _save_model(tmp_path_factory.mktemp("models") / "tiny")

"""Settings and fixtures of many tests: threads, the folder of real data if it exists, and tiny models."""

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# open_clip and timm write nothing, but hub clients look for the network by default
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

# Triton's interpreter runs the kernels on the CPU. Triton reads this when kernels are defined, so set it before imports
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores SIGINT
sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)

SHARED = Path(__file__).resolve().parents[1].parent / "shared"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first: started last, they would leave one of two processes idle."""

    for item in items:
        if item.path.suffix == ".ipynb":
            item.add_marker(pytest.mark.slow(minutes=2))

    def minutes(item: pytest.Item) -> float:
        mark = item.get_closest_marker("slow")
        return mark.kwargs.get("minutes", 0) if mark else 0

    items.sort(key=minutes, reverse=True)


@pytest.fixture(autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep indexes of shards, features and drawn sets out of the user's cache folder."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def file_limit() -> Iterator[Callable[[int], None]]:
    """Return a function that limits the bytes of a file, in place of a full disk, until the end of the test."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built-in sets, with few and small images."""
    from diffclip.scenes import write_scenes

    folder = tmp_path_factory.mktemp("drawn") / "scenes"
    write_scenes(folder, size=32, train=40, val=12, test=96, seed=0)
    return folder


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of golden values and real data beside the repository; skip the test if it is missing."""
    if not SHARED.is_dir():
        pytest.skip("no shared folder beside the repository")
    return SHARED


def _save_model(folder: Path, seed: int = 0) -> Path:
    """Save a differential model of a few thousand weights to `folder`."""
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

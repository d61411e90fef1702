"""The tiny parts of `tiny_vlm`, made once per session, and the model that connects them.

Tests must not change these fixtures (use `copy.deepcopy` first).
"""

from pathlib import Path
from typing import Any

import pytest
from tiny_vlm import make_clip, make_language_model, make_tokenizer, make_vision

import diffclip
from diffclip.integrations.transformers import image_processor_of
from diffclip.vlm.files import save_vlm
from diffclip.vlm.llava import connect


@pytest.fixture(scope="session")
def tiny_clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved DiffCLIP for a recipe's `vision`."""
    folder = tmp_path_factory.mktemp("vision") / "tiny"
    diffclip.save_weights(make_clip(), folder)
    return folder


@pytest.fixture(scope="session")
def parts() -> tuple[Any, Any, Any, Any]:
    """Vision tower, language model, tokenizer and image processor."""
    tokenizer = make_tokenizer()
    return make_vision(), make_language_model(tokenizer), tokenizer, image_processor_of(make_clip().config)


@pytest.fixture(scope="session")
def tiny_language_folder(tmp_path_factory: pytest.TempPathFactory, parts: Any) -> Path:
    """The saved language model and tokenizer for a recipe's `language_model`."""
    folder = tmp_path_factory.mktemp("language") / "tiny"
    for part in parts[1:3]:
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_vlm(parts: Any) -> tuple[Any, Any]:
    """(model, processor): the tower and the language model behind a linear connector."""
    return connect(*parts)


@pytest.fixture(scope="session")
def saved(tiny_vlm: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The connected model in a folder `model`, as in a run of stage 1."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    save_vlm(*tiny_vlm, folder)
    return folder


@pytest.fixture(scope="session")
def processor(tiny_vlm: tuple[Any, Any]) -> Any:
    """The processor for images of 16 × 16 pixels in 4 patches."""
    return tiny_vlm[1]


@pytest.fixture(scope="session")
def tokenizer(processor: Any) -> Any:
    return processor.tokenizer

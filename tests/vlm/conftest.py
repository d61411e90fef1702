"""The tiny parts of `tiny_vlm`, made once, and connected.

Tests must not change what they are given (`copy.deepcopy` first).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_vlm import make_clip, make_language_model, make_tokenizer, make_vision, write_conversations

import diffclip


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Indexes of conversations that fixtures make stay out of the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny_clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved DiffCLIP, as a recipe's `vision` names it."""
    folder = tmp_path_factory.mktemp("vision") / "tiny"
    diffclip.save_weights(make_clip(), folder)
    return folder


@pytest.fixture(scope="session")
def tiny_vision() -> Any:
    return make_vision()


@pytest.fixture(scope="session")
def tiny_image_processor() -> Any:
    from diffclip.integrations.transformers import image_processor_of

    return image_processor_of(make_clip().config)


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture(scope="session")
def tiny_language_model(tiny_tokenizer: Any) -> Any:
    return make_language_model(tiny_tokenizer)


@pytest.fixture(scope="session")
def tiny_language_folder(
    tmp_path_factory: pytest.TempPathFactory, tiny_language_model: Any, tiny_tokenizer: Any
) -> Path:
    """The language model and its tokenizer saved, as a recipe's `language_model` names them."""
    folder = tmp_path_factory.mktemp("language") / "tiny"
    tiny_language_model.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_vlm(
    tiny_vision: Any, tiny_language_model: Any, tiny_tokenizer: Any, tiny_image_processor: Any
) -> tuple[Any, Any]:
    """(model, processor): the tower and the language model behind a linear connector."""
    from diffclip.vlm.llava import connect

    return connect(tiny_vision, tiny_language_model, tiny_tokenizer, tiny_image_processor, "linear")


@pytest.fixture(scope="session")
def tiny_processor(tiny_vlm: tuple[Any, Any]) -> Any:
    return tiny_vlm[1]


@pytest.fixture(scope="session")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(json, images folder) of twelve conversations in LLaVA's format."""
    return write_conversations(tmp_path_factory.mktemp("conversations"))

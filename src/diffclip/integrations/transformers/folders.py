"""Folders that transformers loads: model, processor and tokenizer in one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoImageProcessor
from transformers.utils import logging

from diffclip.errors import InputError
from diffclip.files import write_atomically
from diffclip.integrations.transformers.conversion import from_diffclip, to_diffclip
from diffclip.integrations.transformers.model import DiffCLIPModel
from diffclip.integrations.transformers.processing import image_processor_of, preprocess_of, processor_of
from diffclip.integrations.transformers.tokens import VOCABULARY
from diffclip.model import CLIP


def save_transformers(model: CLIP, folder: str | Path) -> None:
    """Write what the Auto classes load to the new folder `folder`, whole or not at all.

    A model whose vocabulary is smaller than the tokenizer's goes without a tokenizer.

    Raises:
        InputError: the folder is there already, or cannot be written.
    """
    config = model.config
    whole = config.text.vocab_size >= VOCABULARY
    processor = processor_of(config) if whole else image_processor_of(config)
    with write_atomically(folder) as temporary, _no_progress_bar():
        from_diffclip(model).save_pretrained(temporary)
        processor.save_pretrained(temporary)


def load_transformers(place: str | Path, source: str) -> CLIP:
    """The model that transformers saved as a `DiffCLIPModel` to the folder, or under the name on the hub, `place`.

    Raises:
        InputError: weights are missing, extra or of another shape, or its pictures are prepared as ours cannot be;
            `source` names where they come from.
    """
    with _no_progress_bar():
        read: Any = DiffCLIPModel.from_pretrained(place, use_safetensors=True, output_loading_info=True)
    loaded, faults = read
    named = {kind: sorted(map(str, names)) for kind, names in faults.items() if names}
    if named:
        listed = "; ".join(
            f"{kind.replace('_', ' ')} {', '.join(names[:4])}" for kind, names in named.items()
        )
        raise InputError(f"{source} does not hold the model that its config.json describes: {listed}")
    processor = AutoImageProcessor.from_pretrained(place)  # type: ignore[no-untyped-call]
    size = loaded.config.vision_config.image_size
    return to_diffclip(loaded, preprocess_of(processor, size, source)).eval()


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """What takes a second needs no bar, and the command line has its own."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]

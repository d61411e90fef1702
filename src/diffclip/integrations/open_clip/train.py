"""open_clip's training program on our models."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from diffclip.config import CLIPConfig, name_of, parse_config
from diffclip.errors import InputError, unknown
from diffclip.integrations.open_clip.registry import register
from diffclip.weights import CONFIG_FILE

_NEEDED = ("open_clip_train", "pandas", "webdataset")


def run_command(arguments: Sequence[str]) -> int:
    """open_clip's training program, on its own arguments. `--model` may also be a saved folder, a run folder or a
    `config.json`: such a model is trained from fresh weights, unless `--pretrained` says otherwise.

    Returns:
        The exit code: 1 if it stopped because of what it printed.

    Raises:
        InputError: a part of the program is not installed, or there is no such model.
        SystemExit: from its parser.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise InputError(
            f"open_clip's training needs {', '.join(missing)}: run pip install 'open_clip_torch[training]'"
        )
    import open_clip

    words: list[str] = []
    for word in arguments:
        words += word.split("=", 1) if word.startswith("--model=") else [word]
    models: dict[str, CLIPConfig] = {}
    place = words.index("--model") + 1 if "--model" in words[:-1] else None
    if place is not None and os.path.exists(words[place]):
        config = _read_config(words[place])
        words[place] = f"ViT-{name_of(config)}"  # with "vit" in a name it chooses a transformer's Adam
        models[words[place]] = config
    register(models)
    if place is not None and open_clip.get_model_config(words[place]) is None:
        raise unknown("model", words[place], open_clip.list_models())
    # not at the top, nor typed: only its users have it
    return 1 if import_module("open_clip_train.main").main(words) else 0


def _read_config(source: str) -> CLIPConfig:
    from diffclip.model_source import find_model

    path = Path(find_model(source) or source)
    file = path / CONFIG_FILE if path.is_dir() else path
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{file} is no configuration ({error}): give a model's name or a saved folder"
        ) from None
    if not isinstance(fields, dict):
        raise InputError(f"{file} is no configuration: give a model's name or a saved folder")
    return parse_config(fields, str(file))

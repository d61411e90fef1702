"""Our models in open_clip (mlfoundations/open_clip): by name in its functions, and in its training program.

from diffclip.integrations.open_clip import register
register()
model, preprocess_train, preprocess = open_clip.create_model_and_transforms("DiffCLIP-ViT-B-16")

python -m diffclip.integrations.open_clip --model DiffCLIP-ViT-B-16 --train-data …
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from diffclip.config import CLIPConfig, name_of
from diffclip.errors import InputError, unknown
from diffclip.integrations.open_clip.create import register
from diffclip.loading import read_config

__all__ = ["register", "run_command"]


def run_command(arguments: Sequence[str]) -> int:
    """Run open_clip's training program on its own arguments.

    `--model` may also be whatever `diffclip.load` takes that is on this machine: that architecture is trained from
    fresh weights, unless `--pretrained` says otherwise.

    Returns:
        The exit code: 1 if it stopped because of what it printed.

    Raises:
        InputError: a part of the program is not installed, or there is no such model.
        SystemExit: from its parser.
    """
    missing = [name for name in ("open_clip_train", "pandas", "webdataset") if find_spec(name) is None]
    if missing:
        raise InputError(f"this needs {', '.join(missing)}: run pip install 'open_clip_torch[training]'")
    import open_clip

    words: list[str] = []
    for word in arguments:
        words += word.split("=", 1) if word.startswith("--model=") else [word]
    models: dict[str, CLIPConfig] = {}
    place = words.index("--model") + 1 if "--model" in words[:-1] else None
    if place is not None and os.path.exists(words[place]):
        config = read_config(words[place])
        words[place] = f"ViT-{name_of(config)}"  # with "vit" in a name it chooses a transformer's Adam
        models[words[place]] = config
    register(models)
    if place is not None and open_clip.get_model_config(words[place]) is None:
        raise unknown("model", words[place], open_clip.list_models())
    # not at the top, nor typed: only its users have it
    return 1 if import_module("open_clip_train.main").main(words) else 0

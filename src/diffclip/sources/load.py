"""Load models with the preparation of their images and texts; find models and devices by name.

Heavy modules are imported only when they are needed, because commands check names first.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffclip.errors import InputError, explain_errors, unknown_name
from diffclip.files import checkpoint_of

if TYPE_CHECKING:
    import torch

    from diffclip.config import CLIPConfig
    from diffclip.data.transforms import EvalTransform
    from diffclip.model import CLIP
    from diffclip.tokenizer import Tokenizer
    from diffclip.weights import Weights

HUB_PREFIX = "hf-hub:"
"""Prefix of a model on the Hugging Face hub: `hf-hub:OWNER/NAME`."""
OPEN_CLIP, TRANSFORMERS = "open_clip:", "transformers:"
"""Prefixes of models of other libraries, which are converted when they are loaded."""
MODEL_HELP = (
    "A run folder, a saved folder, a published file, hf-hub:OWNER/NAME, open_clip:NAME/PRETRAINED, "
    "transformers:FOLDER (or a name on the hub), or a model's name (random weights)."
)
_RANDOM_SEED = 0
RANDOM = f"random, seed {_RANDOM_SEED}"
"""The value of `weights` in the records of a model with random weights."""
_WEIGHT_SUFFIXES = (".pt", ".pth", ".safetensors")


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode on the CPU, its preparation of images and texts, and its origin.

    `label` is the run's name without its seed (`CLIP` for `runs/demo/CLIP-s0`), else the architecture's name. `weights`
    names the origin of the weights. `seed`, `init`, `data` (the training set), `steps` and `recipe` describe the run.
    """

    model: CLIP
    preprocess: EvalTransform
    tokenizer: Tokenizer
    label: str
    weights: str
    seed: int | None = None
    init: str | None = None
    data: str | None = None
    steps: int | None = None
    recipe: dict[str, Any] | None = None


def load(
    source: str | Path, model: str | None = None, image_size: int | None = None
) -> tuple[CLIP, EvalTransform, Tokenizer]:
    """Load a model in evaluation mode on the CPU, its `preprocess` (PIL image to [3, S, S]) and its tokenizer.

    Args:
        source: a run folder (its best checkpoint, else its last), a saved folder, a published `.pt` or `.safetensors`
            file, or `hf-hub:OWNER/NAME` (with `@REVISION` for one that is not the newest); also a model of another
            library, `open_clip:NAME/PRETRAINED` or `transformers:FOLDER`, which is converted.
        model: the model's name, if the file does not tell it (a published DiffCLIP-dynamic).
        image_size: take images of this size; position embeddings are resampled.

    Raises:
        InputError: `source` has no usable weights, or weights of another model than `model`.
    """
    import torch

    from diffclip.model import CLIP
    from diffclip.weights import put_weights, read_weights

    if str(source).startswith((OPEN_CLIP, TRANSFORMERS)):
        from diffclip.convert.from_libraries import read_foreign

        if model is not None:
            raise InputError(f"{source} names its model already: leave the model's name out")
        return prepare(read_foreign(str(source)), image_size)
    path = locate(source)
    weights = read_weights(path)
    # without memory until the weights are known to fit, and without the initial draw, which takes seconds at ViT-B
    with torch.device("meta"):
        loaded = CLIP(_resolve_config(weights, path, model), seed=0)
    put_weights(loaded, weights, path)
    return prepare(loaded, image_size)


def prepare(model: CLIP, image_size: int | None = None) -> tuple[CLIP, EvalTransform, Tokenizer]:
    """Set `model` to evaluation mode and to `image_size`; return it with its image and text preparation."""
    from diffclip.data.transforms import EvalTransform
    from diffclip.tokenizer import Tokenizer

    if image_size is not None and image_size != model.config.vision.image_size:
        model.set_image_size(image_size)
    model.eval()
    preprocess = EvalTransform(model.config.vision.image_size, model.config.preprocess)
    return model, preprocess, Tokenizer(model.config.text)


def read_config(source: str | Path) -> CLIPConfig:
    """Return the configuration of the model that `load` would read at `source`."""
    from diffclip.weights import read_weights

    if str(source).startswith((OPEN_CLIP, TRANSFORMERS)):
        return load(source)[0].config
    path = locate(source)
    return _resolve_config(read_weights(path), path, None)


def locate(source: str | Path, **options: Any) -> Path:
    """Return `source` as a path; a name on the hub is fetched or found in the hub's cache first.

    Args:
        options: passed to `huggingface_hub.snapshot_download`.
    """
    if not str(source).startswith(HUB_PREFIX):
        return Path(source)
    from huggingface_hub import snapshot_download

    from diffclip.weights import CONFIG_FILE, PUBLISHED_FILE, WEIGHTS_FILE

    repository, _, revision = str(source).removeprefix(HUB_PREFIX).partition("@")
    options |= {"revision": revision or None, "allow_patterns": [CONFIG_FILE, WEIGHTS_FILE, PUBLISHED_FILE]}
    with explain_errors(f"{source} cannot be fetched", "check the name and the connection"):
        return Path(snapshot_download(repository, **options))


def _resolve_config(weights: Weights, path: Path, model: str | None) -> CLIPConfig:
    from diffclip.config import name_of, named_config, resize_config
    from diffclip.published import infer_config

    saved = weights.config
    if saved is not None:
        if model is not None and name_of(saved) != model:
            raise InputError(f"{path} holds {name_of(saved)}, not {model}: leave the model's name out")
        return saved
    if model is None:
        return infer_config(weights.state)
    config, positions = named_config(model), weights.state.get("visual.pos_embed")
    if positions is None or positions.ndim != 3:
        return config
    # the name does not tell the image size of the training; the position embeddings do
    grid = math.isqrt(max(positions.shape[1] - 1 - config.vision.registers, 0))
    return resize_config(config, grid * config.vision.patch_size) if grid else config


def load_with_origin(source: str, model_name: str | None = None, image_size: int | None = None) -> Loaded:
    """Load the model that `source` names.

    Args:
        source: as for `diffclip.load`, or a model's name for random weights, with a warning on stderr.
        model_name: the model in a file that does not tell it (a published DiffCLIP-dynamic).
        image_size: take images of this size; None: the model's own.

    Raises:
        InputError: `source` does not exist (the message offers the nearest name), or has no usable weights.
    """
    from diffclip.config import name_of

    path = find_model(source)
    facts: dict[str, Any] = {}
    if path is None:
        from diffclip.model import create_model

        if model_name not in (None, source):
            raise InputError(f"{source} is a name, so --model-name {model_name} does not fit: leave one out")
        print(
            f"diffclip: WARNING: {source} has random weights, expect results at chance level", file=sys.stderr
        )
        path, loaded = RANDOM, prepare(create_model(source, image_size=image_size, seed=_RANDOM_SEED))
    else:
        checkpoint = Path(path).resolve()  # the link `best` of a run that still trains may change
        in_run = checkpoint.parent.name == "checkpoints" and checkpoint.exists()
        loaded = load(checkpoint if in_run else path, model=model_name, image_size=image_size)
        facts = _read_facts(checkpoint) if in_run else {}
    return Loaded(*loaded, weights=path, **({"label": name_of(loaded[0].config)} | facts))


def runs_in(source: str) -> list[str]:
    """List the runs with a checkpoint in a folder of runs; return any other source as the only item."""
    folder = Path(source)
    if not folder.is_dir() or (folder / "checkpoints").is_dir():
        return [source]
    return [str(run) for run in sorted(folder.iterdir()) if (run / "checkpoints").is_dir()] or [source]


def find_model(source: str) -> str | None:
    """Find the folder, file, hub name or model of another library that `source` stands for; None for a model's name."""
    from diffclip.config import MODEL_NAMES

    if source in MODEL_NAMES and not os.path.exists(source):
        return None
    if source.startswith((HUB_PREFIX, OPEN_CLIP, TRANSFORMERS)):
        return source
    if not os.path.exists(source):
        if os.sep in source or Path(source).suffix in _WEIGHT_SUFFIXES:
            raise InputError(f"{source} does not exist: give a run, a saved folder or a weights file")
        raise unknown_name(
            "model", source, MODEL_NAMES, "give a folder, a file or a name such as DiffCLIP-ViT-B-16"
        )
    return str(checkpoint_of(source))


def recipe_of(run: Path) -> dict[str, Any] | None:
    """Read the recipe of the run in the folder `run`; return None if it is missing or unreadable."""
    import yaml

    try:
        fields = yaml.safe_load((run / "recipe.yaml").read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, OSError):
        return None
    return fields if isinstance(fields, dict) else None


def _read_facts(checkpoint: Path) -> dict[str, Any]:
    """Return label, recipe, seed, init, data (the training set) and steps of the run that wrote `checkpoint`."""
    run = checkpoint.parent.parent
    facts: dict[str, Any] = {"recipe": (recipe := recipe_of(run)), "steps": None}
    with suppress(OSError, ValueError, KeyError, TypeError):
        facts["steps"] = json.loads((checkpoint / "training.json").read_text(encoding="utf-8"))["step"]
    if recipe is None:
        return facts
    data = recipe.get("data")
    train = data.get("train") if isinstance(data, dict) else None
    while isinstance(train, list | dict):  # the first of several sources
        train = train.get("shards") if isinstance(train, dict) else next(iter(train), None)
    path = str(train or "")
    if "://" in path:  # leave out credentials and the query
        path = re.sub(r"^.*?://([^/]*@)?", "", path).partition("?")[0]
    folders = [part for part in Path(path).parts if part not in ("train", "/") and not part.endswith(".tar")]
    return facts | {
        "label": re.sub(r"-s\d+$", "", run.name),
        "seed": recipe.get("seed"),
        "init": recipe.get("init"),
        "data": folders[-1] if folders else None,
    }


def pick_device(name: str) -> torch.device:
    """Return the device called `name`; "auto" is the first CUDA device if there is one, else the CPU."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.allow_tf32 = False  # float32 without TF32, also in the patch convolution
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError):
        raise InputError(f"device {name!r} is not available here: use cpu, or leave --device out") from None

"""Load models with the preparation of their images and texts; find models and devices by name.

Heavy modules are imported only when they are needed, because commands check names first.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffclip.errors import InputError, require_group, say_once
from diffclip.sources.registry import READERS, find_model, library_of

if TYPE_CHECKING:
    import torch

    from diffclip.config import CLIPConfig
    from diffclip.model import CLIP
    from diffclip.preprocess import EvalTransform
    from diffclip.tokenizer import Tokenizer
    from diffclip.weights import Weights

_RANDOM_SEED = 0
RANDOM = f"random, seed {_RANDOM_SEED}"
"""The value of `weights` in the records of a model with random weights."""
SCENES = "scenes"
"""The value of `data` of a model that was trained on the built-in scenes."""


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode on the CPU, its preparation of images and texts, and its origin.

    `model` is a `CLIP`, or a `WrappedModel` of another library, whose `tokenizer` may be None. `label` is the name of
    the run without its seed (`CLIP` for `runs/demo/CLIP-s0`), else of the architecture. `weights` names the origin of
    the weights. `seed`, `init`, `data` (the training set), `steps` and `recipe` describe the run.
    """

    model: Any
    preprocess: Any
    tokenizer: Any
    label: str
    weights: str
    seed: int | None = None
    init: str | None = None
    data: str | None = None
    steps: int | None = None
    recipe: dict[str, Any] | None = None

    @property
    def origin(self) -> dict[str, Any]:
        """The facts about the training that `save_weights` keeps."""
        facts = {name: getattr(self, name) for name in ("label", "seed", "init", "data", "steps")}
        return {name: value for name, value in facts.items() if value is not None}


def load(
    source: str | Path,
    model: str | None = None,
    image_size: int | None = None,
    context_length: int | None = None,
) -> tuple[Any, Any, Any]:
    """Load any model in evaluation mode on the CPU, its `preprocess` (PIL image to [3, S, S]) and its tokenizer.

    Args:
        source: a run folder (its best checkpoint, else its last), a saved folder, a published `.pt` or `.safetensors`
            file, `hf-hub:OWNER/NAME` (with `@REVISION` for one that is not the newest), or a model of a library:
            `open_clip:NAME/PRETRAINED`, `transformers:FOLDER`, `timm:NAME` (images alone, the tokenizer is None), or
            `PREFIX:NAME` of `register_model_source`. A plain ViT CLIP of a library is converted to a `CLIP`; any other
            model is wrapped as it is (`WrappedModel`) with its own preparation and tokenizer.
        model: the model's name, if the file does not tell it (a published DiffCLIP-dynamic).
        image_size: let a `CLIP` take images of this size; position embeddings are resampled.
        context_length: let a `CLIP` take texts of this many tokens; position embeddings are cut or interpolated.

    Raises:
        InputError: `source` has no usable weights, or weights of another model than `model`.
    """
    return _load(source, model, image_size, context_length)[0]


def load_clip(
    source: str | Path, image_size: int | None = None, context_length: int | None = None
) -> tuple[CLIP, EvalTransform, Tokenizer]:
    """Load a `CLIP` as `load` does; a model of a library that cannot be converted is refused with the reason."""
    return _load(source, None, image_size, context_length, only_clip=True)[0]


def _load(
    source: str | Path,
    name: str | None,
    image_size: int | None = None,
    context_length: int | None = None,
    only_clip: bool = False,
) -> tuple[tuple[Any, Any, Any], Mapping[str, Any]]:
    """Load a model with its preparation and tokenizer; return them, and the facts that are saved with the weights."""
    from diffclip.model import CLIP, empty_model
    from diffclip.sources.hub import locate
    from diffclip.weights import put_weights, read_weights

    origin: Mapping[str, Any] = {}
    if library_of(source):
        if name is not None:
            raise InputError(f"{source} names its model already: leave the model's name out")
        model = _read_library(str(source), only_clip)
        if not isinstance(model, CLIP):
            if image_size is not None or context_length is not None:
                raise InputError(f"{source} is used as it is: leave image size and context length out")
            return model, origin
    else:
        path = locate(source)
        weights = read_weights(path)
        # without memory until the weights are known to fit, and without the initial draw, which takes seconds at ViT-B
        model = empty_model(_resolve_config(weights, path, name))
        put_weights(model, weights, path)
        origin = weights.origin
    return prepare(model, image_size, context_length), origin


def _read_library(source: str, only_clip: bool) -> CLIP | tuple[Any, Any, Any]:
    """Read `PREFIX:NAME`: a `CLIP`, or a wrapped model with its preparation and tokenizer (not if `only_clip`)."""
    from diffclip.model import CLIP
    from diffclip.sources.hub import check_reachable
    from diffclip.sources.wrapped import wrap

    prefix, _, name = source.partition(":")
    if prefix == "open_clip":
        from diffclip.sources.open_clip import read_open_clip

        return read_open_clip(name, only_clip)
    if prefix == "transformers":
        require_group("vlm", "transformers")
        if not (Path(name).exists() or Path(name).is_absolute()):  # before the import, which takes seconds
            check_reachable(name, source, "config.json")
        from diffclip.sources.transformers import read_transformers

        return read_transformers(name, only_clip)
    if prefix == "timm":
        from diffclip.sources.timm import read_timm

        found: Any = read_timm(name)
    else:
        found = READERS[prefix](name)
    if isinstance(found, CLIP):
        return found
    if only_clip:
        raise InputError(f"{source} is not a CLIP of this package, which is needed here: use it in evaluate")
    return wrap(source, *found)


def prepare(
    model: CLIP, image_size: int | None = None, context_length: int | None = None
) -> tuple[CLIP, EvalTransform, Tokenizer]:
    """Set `model` to evaluation mode and to the given sizes; return it with its image and text preparation."""
    from diffclip.preprocess import EvalTransform
    from diffclip.tokenizer import Tokenizer

    trained_at = model.config.vision.image_size
    if image_size not in (None, trained_at):
        say_once(f"position embeddings are resampled from images of {trained_at} px to {image_size} px")
        model.set_image_size(image_size)
    if context_length not in (None, model.config.text.context_length):
        model.set_context_length(context_length)
    preprocess = EvalTransform(model.config.vision.image_size, model.config.preprocess)
    return model.eval(), preprocess, Tokenizer(model.config.text)


def read_config(source: str | Path) -> CLIPConfig:
    """Return the configuration of the model that `load_clip` would read at `source`."""
    from diffclip.sources.hub import locate
    from diffclip.weights import read_weights

    if library_of(source):
        return load_clip(source)[0].config
    path = locate(source)
    return _resolve_config(read_weights(path), path, None)


def _resolve_config(weights: Weights, path: Path, model: str | None) -> CLIPConfig:
    from diffclip.config import name_of, named_config, resize_config
    from diffclip.published import infer_config
    from diffclip.tensors import first_names

    if (saved := weights.config) is not None:
        if model not in (None, name_of(saved)):
            raise InputError(f"{path} holds {name_of(saved)}, not {model}: leave the model's name out")
        return saved
    if model is None:
        try:
            return infer_config(weights.state)
        except InputError as error:
            raise InputError(f"{path} has {first_names(weights.state)}: {error}") from None
    config, positions = named_config(model), weights.state.get("visual.pos_embed")
    if positions is None or positions.ndim != 3:
        return config
    # the name does not tell the image size of the training; the position embeddings do
    grid = math.isqrt(max(positions.shape[1] - 1 - config.vision.registers, 0))
    return resize_config(config, grid * config.vision.patch_size) if grid else config


def load_with_origin(
    source: str, model_name: str | None = None, image_size: int | None = None, only_clip: bool = True
) -> Loaded:
    """Load the model that `source` names.

    Args:
        source: as for `diffclip.load`, or a model's name for random weights, with a warning on stderr.
        model_name: the model in a file that does not tell it (a published DiffCLIP-dynamic).
        image_size: take images of this size; None: the model's own.
        only_clip: refuse a model of another library that cannot be converted to a `CLIP`.

    Raises:
        InputError: `source` does not exist (the message offers the nearest name), or has no usable weights.
    """
    path = find_model(source)
    if path is None:
        from diffclip.model import create_model

        if model_name not in (None, source):
            raise InputError(f"{source} is a name, so --model-name {model_name} does not fit: leave one out")
        print(
            f"diffclip: WARNING: {source} has random weights, expect results at chance level", file=sys.stderr
        )
        loaded = prepare(create_model(source, image_size=image_size, seed=_RANDOM_SEED))
        return Loaded(*loaded, name_of_model(loaded[0]), RANDOM)
    checkpoint = Path(path).resolve()  # the link `best` of a run that still trains may change
    in_run = checkpoint.parent.name == "checkpoints" and checkpoint.exists()
    found, origin = _load(checkpoint if in_run else path, model_name, image_size, only_clip=only_clip)
    facts = _read_facts(checkpoint) if in_run else dict(origin)
    return Loaded(*found, facts.pop("label", None) or name_of_model(found[0]), path, **facts)


def name_of_model(model: Any) -> str:
    """Return the name of a model for tables and records: of its architecture, or in its library."""
    from diffclip.config import name_of
    from diffclip.model import CLIP

    if isinstance(model, CLIP):
        return name_of(model.config)
    source = str(getattr(model, "source", type(model).__name__))
    return source.partition(":")[2] or source


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
    facts: dict[str, Any] = {"recipe": (recipe := recipe_of(run))}
    with suppress(OSError, ValueError, KeyError, TypeError):
        facts["steps"] = json.loads((checkpoint / "training.json").read_text(encoding="utf-8"))["step"]
    if recipe is None:
        return facts
    facts |= {
        "label": re.sub(r"-s\d+$", "", run.name),
        "seed": recipe.get("seed"),
        "init": recipe.get("init"),
    }
    data = recipe.get("data")
    train = data.get("train") if isinstance(data, dict) else None
    while isinstance(train, list | dict):  # the first of several sources
        train = train.get("shards") if isinstance(train, dict) else next(iter(train), None)
    text = str(train or "")
    if "://" in text:  # leave out credentials and the query
        text = re.sub(r"^.*?://([^/]*@)?", "", text).partition("?")[0]
    path = Path(text)
    folders = [part for part in path.parts if part not in ("train", "/") and not part.endswith(".tar")]
    are_scenes = any((folder / "scenes.json").is_file() for folder in path.parents[:2])
    return facts | {"data": SCENES if are_scenes else folders[-1] if folders else None}


def warn_of_photographs(loaded: Loaded) -> None:
    """Print a line on stderr if the model was trained on the built-in scenes alone."""
    if loaded.data == SCENES:
        print(
            f"diffclip: {loaded.weights} has seen the built-in scenes of colored shapes alone: for photographs use "
            "weights that were trained on photographs, such as hf-hub:hammh0a/DiffCLIP_ViTB16_CC12M",
            file=sys.stderr,
        )


def pick_device(name: str) -> torch.device:
    """Return the device called `name`; "auto" is the first CUDA device if there is one, else the CPU."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.allow_tf32 = False  # float32 without TF32, also in the patch convolution
    try:
        device = torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError):
        raise InputError(f"device {name!r} is not available here: use cpu, or leave --device out") from None
    if device.type == "meta":
        raise InputError(f"device {name!r} holds no values: use cpu or cuda")
    return device

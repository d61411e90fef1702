"""`load`: a model ready for use, with the picture and text preparation that belongs to it."""

from __future__ import annotations

from pathlib import Path

from diffclip.config import HUB_PREFIX as HUB_PREFIX
from diffclip.config import CLIPConfig, name_of, named_config
from diffclip.data.transforms import EvalTransform, eval_transform
from diffclip.errors import InputError
from diffclip.model import CLIP
from diffclip.published import infer_config
from diffclip.tokenizer import Tokenizer
from diffclip.weights import CONFIG_FILE, PUBLISHED_FILE, WEIGHTS_FILE, Weights, put_weights, read_weights


def load(
    source: str | Path, model: str | None = None, image_size: int | None = None
) -> tuple[CLIP, EvalTransform, Tokenizer]:
    """A model in evaluation mode on the CPU, its `preprocess` (PIL picture to [3, S, S]) and its tokenizer.

    Args:
        source: a saved folder, a published `.pt` or `.safetensors` file, or `hf-hub:owner/name`.
        model: the model's name, where the file cannot tell it (a published DiffCLIP-dynamic).
        image_size: take pictures of this size; position embeddings are resampled.

    Raises:
        InputError: nothing usable at `source`, or it holds another model than `model`.
    """
    path = _local(source)
    weights = read_weights(path)
    loaded = CLIP(_config(weights, path, model), seed=0)
    put_weights(loaded, weights, path)
    if image_size is not None and image_size != loaded.config.vision.image_size:
        loaded.set_image_size(image_size)
    loaded.eval()
    preprocess = eval_transform(loaded.config.vision.image_size, loaded.config.preprocess)
    return loaded, preprocess, Tokenizer(loaded.config.text)


def read_config(source: str | Path) -> CLIPConfig:
    """The configuration of what `load` would read at `source`.

    Raises:
        InputError: nothing usable at `source`.
    """
    path = _local(source)
    return _config(read_weights(path), path, None)


def _local(source: str | Path) -> Path:
    return fetch(str(source)) if str(source).startswith(HUB_PREFIX) else Path(source)


def _config(weights: Weights, path: Path, model: str | None) -> CLIPConfig:
    saved = weights.config
    if saved is not None:
        if model is not None and name_of(saved) != model:
            raise InputError(f"{path} holds {name_of(saved)}, not {model}: leave the model's name out")
        return saved
    return named_config(model) if model is not None else infer_config(weights.state)


def fetch(source: str) -> Path:
    """The local folder of `hf-hub:owner/name`: its saved model, else its `checkpoint_best.pt`.

    Raises:
        InputError: no such model on the hub, or the hub cannot be reached.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    repository = source.removeprefix(HUB_PREFIX)
    fault: Exception | None = None
    for files in ((CONFIG_FILE, WEIGHTS_FILE), (PUBLISHED_FILE,)):
        try:
            fetched = [Path(hf_hub_download(repository, file)) for file in files]
            return fetched[0].parent
        except EntryNotFoundError as error:  # not in the repository, or offline and not in the cache
            fault = error
        except Exception as error:  # the client raises many kinds, and each means that there is no model
            fault = error
            break
    lines = str(fault).strip().splitlines() or [type(fault).__name__]
    raise InputError(f"{source} cannot be fetched ({lines[0][:150]}): check the name and the connection")

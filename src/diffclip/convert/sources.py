"""Models of other libraries by what a user calls them: `open_clip:ARCHITECTURE:WEIGHTS`, `transformers:FOLDER`."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diffclip.convert.from_open_clip import from_open_clip
from diffclip.convert.from_transformers import from_transformers
from diffclip.errors import InputError, require_group, unknown
from diffclip.model import CLIP

OPEN_CLIP, TRANSFORMERS = "open_clip:", "transformers:"


def is_foreign(source: str) -> bool:
    """Whether `source` names a model of another library."""
    return source.startswith((OPEN_CLIP, TRANSFORMERS))


def transformers_kind(source: str) -> str | None:
    """What the configuration of `transformers:NAME` calls its kind ("clip", say); None for another library's model.

    Raises:
        InputError: transformers is not installed, there is no such model, or its configuration names no kind.
    """
    if not source.startswith(TRANSFORMERS):
        return None
    require_group("vlm", "transformers")
    from transformers import PreTrainedConfig

    with reading(source):
        config = PreTrainedConfig.get_config_dict(source.removeprefix(TRANSFORMERS))[0]
    if "model_type" not in config:
        raise InputError(
            f"{source}: its config.json names no model_type, so transformers did not save it: leave {TRANSFORMERS} out "
            "if it is ours"
        )
    return str(config["model_type"])


def read_foreign(source: str) -> CLIP:
    """The model that `source` names, as a plain CLIP of ours. No code of the weights' author is run.

    Args:
        source: `open_clip:ViT-B-16:laion2b_s34b_b88k` (or a file in place of the tag), or `transformers:NAME`, a
            saved folder or a name on the hub.

    Raises:
        InputError: no such model, weights that cannot be read, or a model that cannot be converted.
    """
    if source.startswith(OPEN_CLIP):
        return _from_open_clip(source)
    return _from_transformers(source)


def _from_open_clip(source: str) -> CLIP:
    import open_clip

    architecture, _, weights = source.removeprefix(OPEN_CLIP).partition(":")
    if architecture not in open_clip.list_models():
        raise unknown("architecture of open_clip", architecture, open_clip.list_models())
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    if not weights or (weights not in tags and not Path(weights).is_file()):
        which = f"{weights} is neither a file nor" if weights else "it says no weights:"
        raise InputError(f"{source}: {which} one of {architecture}'s {', '.join(tags) or '(none)'}")
    quick = _is_quick_gelu(architecture, weights)
    with reading(source):
        # an override of its configuration; nothing is said of what is as the weights were trained
        model = open_clip.create_model(architecture, pretrained=weights, weights_only=True, quick_gelu=quick)
    return from_open_clip(model, source)


def _is_quick_gelu(architecture: str, weights: str) -> bool:
    """The activation that `weights` were trained with: the tag's own, for a file the architecture's.

    OpenAI's weights and many others are offered under architectures with GELU and with QuickGELU, and open_clip
    follows the architecture. Where the tag differs a line on stderr says so.
    """
    import open_clip

    of_architecture = bool(open_clip.get_model_config(architecture).get("quick_gelu", False))
    tag = open_clip.get_pretrained_cfg(architecture, weights)
    quick = bool(tag.get("quick_gelu", False)) if tag else of_architecture
    if quick != of_architecture:
        taken, not_taken = ("QuickGELU", "GELU") if quick else ("GELU", "QuickGELU")
        print(
            f"diffclip: {weights} was trained with {taken}, which is taken in place of {architecture}'s {not_taken}",
            file=sys.stderr,
        )
    return quick


def _from_transformers(source: str) -> CLIP:
    kind = transformers_kind(source)
    if kind != "clip":
        raise InputError(f"{source} is a {kind!r}, not a 'clip': give a CLIP with two ViT towers")
    from transformers import CLIPModel

    from diffclip.integrations.transformers.conversion import no_progress_bar, read_preprocess

    place = source.removeprefix(TRANSFORMERS)
    with reading(source), no_progress_bar():
        model: Any = CLIPModel.from_pretrained(place, use_safetensors=True)
        preprocess = read_preprocess(place, model.config.vision_config.image_size, source)
    converted = from_transformers(model, source)
    if preprocess is not None:
        converted.config.preprocess = preprocess
    return converted


@contextmanager
def reading(source: str) -> Iterator[None]:
    """What the libraries raise for files that are missing, damaged or not theirs, in one line; their remarks are not
    heard."""
    try:
        with _quiet():
            yield
    except InputError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            f"{source} cannot be read ({reason}): check the name, the files and the connection"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """The libraries' own remarks on loading are not what a user of ours asked about."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

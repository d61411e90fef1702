"""The model as a stage starts from it: its parts put together or stage 1's, and what of it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from diffclip.errors import InputError
from diffclip.vlm.folders import load_language_model, load_vision, load_vlm
from diffclip.vlm.llava import connector_of
from diffclip.vlm.model import connect
from diffclip.vlm.recipe import StageRecipe, VLMRecipe, read_vlm_recipe


def starting_model(recipe: VLMRecipe, part: StageRecipe, stage: int) -> tuple[Any, Any]:
    """The model that `stage` starts from, in float32, and its processor.

    Raises:
        InputError: a part cannot be used, or stage 2 starts from a model of other parts than the recipe's.
    """
    if stage == 1:
        vision, image_processor = load_vision(recipe.vision)
        language_model, tokenizer = load_language_model(recipe.language_model)
        return connect(
            vision,
            language_model,
            tokenizer,
            image_processor,
            recipe.connector,
            recipe.image_token,
            recipe.seed,
        )
    if part.start is None:
        raise InputError("stage2.start is missing: give the run of stage 1, stage2.start=FOLDER")
    _check_start(recipe, part.start)
    model, processor = load_vlm(part.start)
    if connector_of(model) != recipe.connector:
        raise InputError(
            f"{part.start} has the connector {connector_of(model)}, and the recipe says {recipe.connector}: "
            f"give connector={connector_of(model)}, or another stage2.start"
        )
    return model.float(), processor


def _check_start(recipe: VLMRecipe, start: str) -> None:
    """Raise `InputError` where the run that stage 2 starts from says that it has other parts than `recipe`."""
    file = Path(start) / "recipe.yaml"
    if not file.is_file():
        return
    before = read_vlm_recipe(file)
    for key in ("connector", "vision", "language_model", "image_token"):
        was, now = getattr(before, key), getattr(recipe, key)
        if was != now:
            raise InputError(
                f"{start} was trained with {key}={was}, and the recipe says {now}: give {key}={was}, or another "
                "stage2.start"
            )


def freeze(model: Any, stage: int) -> None:
    """Leave to training what `stage` trains: the connector, and in stage 2 the language model too."""
    model.requires_grad_(False)
    model.model.multi_modal_projector.requires_grad_(True)
    if stage == 2:
        model.model.language_model.requires_grad_(True)
        model.lm_head.requires_grad_(True)


def look_at_nothing(model: Any) -> None:
    """Let a batch without pictures look at an empty one, whose features count for nothing.

    Otherwise the connector would have no gradient in it, for which DistributedDataParallel waits, and in stage 1 there
    would be none at all. Under DeepSpeed's ZeRO-3 the processes also have to run the same layers. LLaVA does likewise.
    """
    size, channels = model.config.vision_config.image_size, model.config.vision_config.num_channels

    def look(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if kwargs.get("pixel_values") is not None or kwargs.get("input_ids") is None:
            return None
        words = module.get_input_embeddings()(kwargs["input_ids"])
        empty = torch.zeros(1, channels, size, size, device=words.device, dtype=module.dtype)
        features = module.get_image_features(pixel_values=empty, return_dict=True).pooler_output[0]
        return args, kwargs | {"input_ids": None, "inputs_embeds": words + 0.0 * features.sum()}

    model.model.register_forward_pre_hook(look, with_kwargs=True)

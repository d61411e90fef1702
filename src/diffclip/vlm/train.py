"""Train one stage with transformers' Trainer, also on several GPUs (torchrun, `accelerate launch`), and resume runs.

The vision tower is frozen in both stages. Stage 1 trains the connector, stage 2 connector and language model
(arXiv:2310.03744; the paper's Section 5.1).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from diffclip.errors import DiffCLIPError, InputError
from diffclip.training.distributed import has_bf16, native_precision
from diffclip.training.run_folder import RECIPE_FILE, lock_folder
from diffclip.training.stopping import StopRequest
from diffclip.vlm.chat import TEMPLATES, image_tokens
from diffclip.vlm.dataset import ConversationSet, open_conversations, training_order
from diffclip.vlm.files import MODEL_FOLDER, load_language_model, load_vision, load_vlm, save_vlm
from diffclip.vlm.llava import connect, freeze
from diffclip.vlm.run_folder import check_run, claim_run, is_finished
from diffclip.vlm.settings import StageRecipe, VLMRecipe, read_vlm_recipe
from diffclip.vlm.trainer import fit, make_arguments


def train_stage(
    recipe: VLMRecipe, stage: int, run: Path, resume: bool = False, say: Callable[[str], None] = print
) -> int:
    """Train `stage` of `recipe` in the folder `run`, save the model to RUN/model, and return the number of steps.

    Under torchrun or `accelerate launch` every process calls this. A resumed run continues from its last complete
    checkpoint, or starts again if it has none. For a finished run the number of steps is 0, and `say` is called in the
    first process with a line for the user.

    Raises:
        InputError: the recipe, its data or its models cannot be used, `run` holds another run, or the disk is full.
        StoppedError: a signal asked the run to stop; its state is saved.
        DiffCLIPError: the loss is not finite, or the GPU's memory is too small.
    """
    part, recipe = recipe.stage(stage), recipe.only(stage)
    is_first = os.environ.get("RANK", "0") == "0"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    bf16 = native_precision(recipe.precision, device) == "bf16"
    with ExitStack() as stack, StopRequest(run) as stop:
        try:
            check_run(recipe, run, resume)
            if is_finished(run):
                if is_first:
                    say(f"{run} is finished: its model is {run / MODEL_FOLDER}")
                return 0
            passes = part.passes(int(os.environ.get("WORLD_SIZE", "1")))
            if bf16 and device == "cuda" and not has_bf16(device):
                raise InputError("the GPU has no bfloat16: give precision=fp32")
            model, processor = starting_model(recipe, part, stage)
            arguments = make_arguments(
                run,
                per_device_train_batch_size=part.per_device_batch_size,
                gradient_accumulation_steps=passes,
                num_train_epochs=1,  # the order has the samples of all epochs
                learning_rate=part.lr,
                lr_scheduler_type="cosine",
                warmup_steps=part.warmup_ratio,  # a value below 1 is a share of all steps
                weight_decay=part.weight_decay,
                bf16=bf16,
                dataloader_num_workers=recipe.workers,
                seed=recipe.seed,
                save_steps=part.save_every,
            )
            with arguments.main_process_first(local=False):
                conversations = open_conversations(part.json_file, part.images, run / "conversations")
        except DiffCLIPError as error:
            error.shared = True  # every process raises it
            raise
        if is_first:
            stack.enter_context(lock_folder(run))
            claim_run(recipe, run)
        freeze(model, stage)
        _reach_all_weights(model)
        if recipe.gradient_checkpointing:
            # later releases of transformers have the first name, earlier ones the second
            enable = getattr(model, "activation_checkpointing_enable", None)
            (enable or model.gradient_checkpointing_enable)()
        template = TEMPLATES[stage]
        lengths = conversations.token_counts(template, image_tokens(processor), recipe.max_length)
        order = training_order(lengths, conversations.has_image(), part.batch_size, recipe.seed, part.epochs)
        dataset = ConversationSet(conversations, order, part.images, processor, template, recipe.max_length)
        trainer = fit(run, model, dataset, processor.tokenizer.pad_token_id or 0, arguments, stop, resume)
        if is_first:
            save_vlm(trainer.model, processor, run / MODEL_FOLDER)
        trainer.accelerator.wait_for_everyone()
        return int(trainer.state.global_step)


def starting_model(recipe: VLMRecipe, part: StageRecipe, stage: int) -> tuple[Any, Any]:
    """Load the model that `stage` starts from, in float32, and its processor."""
    if stage == 1:
        vision, image_processor = load_vision(recipe.vision)
        language_model, tokenizer = load_language_model(recipe.language_model)
        return connect(vision, language_model, tokenizer, image_processor, recipe.connector, recipe.seed)
    if part.start is None:
        raise InputError("stage2.start is missing: give the run of stage 1, stage2.start=FOLDER")
    recipe_file = Path(part.start) / RECIPE_FILE
    started = read_vlm_recipe(recipe_file) if recipe_file.is_file() else recipe
    model, processor = load_vlm(part.start)
    parts = {"connector": model.config.connector, "vision": started.vision}
    for key, was in (parts | {"language_model": started.language_model}).items():
        if was != getattr(recipe, key):
            raise InputError(
                f"{part.start} was trained with {key}={was}, and the recipe says {getattr(recipe, key)}: give "
                f"{key}={was}, or another stage2.start"
            )
    return model.float(), processor


def _reach_all_weights(model: Any) -> None:
    """Give a batch without images an empty image whose features have no effect.

    Otherwise the connector would have no gradient from that batch, and DistributedDataParallel would wait for it. In
    stage 1 there would be no gradient at all. LLaVA does the same.
    """
    size, channels = model.config.vision_config.image_size, model.config.vision_config.num_channels

    def add_image(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if kwargs.get("pixel_values") is not None or kwargs.get("input_ids") is None:
            return None
        embeddings = module.get_input_embeddings()(kwargs["input_ids"])
        empty = torch.zeros(1, channels, size, size, device=embeddings.device, dtype=module.dtype)
        features = module.get_image_features(pixel_values=empty, return_dict=True).pooler_output[0]
        return args, kwargs | {"input_ids": None, "inputs_embeds": embeddings + 0.0 * features.sum()}

    model.model.register_forward_pre_hook(add_image, with_kwargs=True)

"""Train one stage with transformers' Trainer, also on several GPUs (torchrun, `accelerate launch`), and resume runs.

The vision tower is frozen in both stages. Stage 1 trains the connector, stage 2 connector and language model
(arXiv:2310.03744; the paper's Section 5.1).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from diffclip.errors import InputError
from diffclip.files import write_text
from diffclip.training.distributed import has_bf16, native_precision
from diffclip.training.run_folder import LOCK_FILE, RECIPE_FILE, describe_change, lock_folder, names_in
from diffclip.training.stopping import StopRequest
from diffclip.vlm.chat import TEMPLATES
from diffclip.vlm.conversations import read_conversations
from diffclip.vlm.dataset import ConversationSet, training_order
from diffclip.vlm.files import MODEL_FOLDER, load_language_model, load_vision, load_vlm, save_vlm
from diffclip.vlm.llava import connect, freeze
from diffclip.vlm.settings import STAGES, StageRecipe, VLMRecipe, read_vlm_recipe
from diffclip.vlm.trainer import checkpoints, fit, make_arguments

# a resumed run may have other values of these keys, because they change its numbers by rounding at most
_FREE_KEYS = {"gradient_checkpointing", "workers"} | {
    f"stage{stage}.{key}"
    for stage in STAGES
    for key in ("images", "per_device_batch_size", "save_every", "start")
}


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
        if is_first:
            print(f"{part.json_file}: checking its samples", file=sys.stderr)
        conversations = read_conversations(part.json_file, part.images, part.image_prefix)
        lengths = conversations.lengths()
        order = training_order(lengths, part.batch_size, recipe.seed, part.epochs)
        if not len(order):
            raise InputError(
                f"stage{stage}.epochs={part.epochs:g} of {len(lengths)} samples is less than one sample"
            )
        if is_first:
            stack.enter_context(lock_folder(run))
            complete = checkpoints(run)
            # those that were not written to the end: training may not save at that step again
            for folder in set(run.glob("checkpoint-*")) - set(complete):
                shutil.rmtree(folder)
            if not complete:
                write_text(run / RECIPE_FILE, recipe.to_yaml())
        freeze(model, stage)
        _reach_all_weights(model)
        if recipe.gradient_checkpointing:
            # later releases of transformers have the first name, earlier ones the second
            enable = getattr(model, "activation_checkpointing_enable", None)
            (enable or model.gradient_checkpointing_enable)()
        template = TEMPLATES[stage]
        dataset = ConversationSet(conversations, order, part.images, processor, template, recipe.max_length)
        trainer = fit(run, model, dataset, processor.tokenizer.pad_token_id or 0, arguments, stop, resume)
        if is_first:
            save_vlm(trainer.model, processor, run / MODEL_FOLDER)
        trainer.accelerator.wait_for_everyone()
        return int(trainer.state.global_step)


def is_finished(run: Path) -> bool:
    """Return whether the run in this folder has saved its model."""
    return (run / MODEL_FOLDER).is_dir() and (run / RECIPE_FILE).is_file()


def check_run(recipe: VLMRecipe, run: Path, resume: bool) -> None:
    """Check, without writing anything, that a run of `recipe` (with one stage) may start or continue in `run`."""
    names = names_in(run)
    if not resume and (is_finished(run) or checkpoints(run)):
        raise InputError(f"{run} holds a run already: add --resume to go on with it, or choose another --run")
    if resume and RECIPE_FILE in names:
        started = read_vlm_recipe(run / RECIPE_FILE)
        before, now = started.model_dump(by_alias=True), recipe.model_dump(by_alias=True)
        if checkpoints(run) and (change := describe_change(before, now, _FREE_KEYS)):
            raise InputError(f"{run} was started with {change}: resume with the same recipe")
    elif names and LOCK_FILE not in names:
        raise InputError(f"{run} holds other files: choose a new or an empty folder for --run")


def starting_model(recipe: VLMRecipe, part: StageRecipe, stage: int) -> tuple[Any, Any]:
    """Load the model that `stage` starts from, in float32, and its processor."""
    if stage == 1:
        vision, image_processor = load_vision(recipe.vision)
        language_model, tokenizer = load_language_model(recipe.language_model)
        return connect(vision, language_model, tokenizer, image_processor, recipe.seed)
    if part.start is None:
        raise InputError("stage2.start is missing: give the run of stage 1, stage2.start=FOLDER")
    recipe_file = Path(part.start) / RECIPE_FILE
    started = read_vlm_recipe(recipe_file) if recipe_file.is_file() else recipe
    model, processor = load_vlm(part.start)
    for key in ("vision", "language_model"):
        was, now = getattr(started, key), getattr(recipe, key)
        if was != now:
            line = f"{part.start} was trained with {key}={was}, and the recipe says {now}: give {key}={was}"
            raise InputError(f"{line}, or another stage2.start")
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

"""One stage of training, on transformers' Trainer: many GPUs by torchrun or `accelerate launch`, DeepSpeed, resuming.

The vision tower is frozen in both stages. Stage 1 trains the connector, stage 2 connector and language model
(arXiv:2310.03744; the paper's Section 5.1).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from diffclip.errors import DiffCLIPError, InputError, StoppedError
from diffclip.files import disk_errors
from diffclip.training.interrupt import StopRequest
from diffclip.vlm.batches import Collator, ConversationSet
from diffclip.vlm.conversations import read_conversations
from diffclip.vlm.folders import MODEL_FOLDER, quiet, save_vlm
from diffclip.vlm.llava import compute_again
from diffclip.vlm.recipe import StageRecipe, VLMRecipe
from diffclip.vlm.run import check_run, claim_run, is_finished, last_checkpoint, of_stage
from diffclip.vlm.start import freeze, look_at_nothing, starting_model
from diffclip.vlm.telling import Telling
from diffclip.weights import as_disk_error

# beside the newest, one more, in case the newest is cut off while it is written
_KEPT_CHECKPOINTS = 2


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its model's folder, and the steps it took; none where it had ended before."""

    model: Path
    steps: int


def train_stage(
    recipe: VLMRecipe, stage: int, run: Path, resume: bool = False, say: Callable[[str], None] = print
) -> Outcome:
    """Train `stage` of `recipe` in the folder `run` and save the model to RUN/model.

    Under torchrun or `accelerate launch` every process calls this. A resumed run goes on from its last whole
    checkpoint, or from its start where it has none; where nothing is left to do, it says so.

    Args:
        say: told in the first process what a user should know, a line each.

    Raises:
        InputError: the recipe, its data or its models cannot be used, `run` holds another run, or the disk is full.
        StoppedError: a signal asked the run to stop; its state is saved.
        DiffCLIPError: the loss is not finite, or memory is short.
    """
    part, recipe = recipe.stage(stage), of_stage(recipe, stage)
    say = say if _rank() == 0 else _nothing
    with ExitStack() as held, StopRequest(run) as stop:
        try:
            check_run(recipe, run, resume)
            if is_finished(run):
                say(f"{run} is finished: its model is {run / MODEL_FOLDER}")
                return Outcome(run / MODEL_FOLDER, 0)
            _check_deepspeed(recipe)
            accumulate = part.passes(_world())
            conversations = read_conversations(part.json_file, part.images)
            model, processor = starting_model(recipe, part, stage)
        except DiffCLIPError as error:
            error.shared = True  # every process has met it
            raise
        if _rank() == 0:
            held.enter_context(claim_run(recipe, run, resume))
        dataset = ConversationSet(conversations, processor, part.template, recipe.max_length)
        freeze(model, stage)
        look_at_nothing(model)
        if recipe.gradient_checkpointing:
            compute_again(model)
        telling = Telling(run, part.batch_size, len(dataset))
        held.callback(telling.close)
        steps = part.steps(len(dataset))
        with quiet():
            arguments = _arguments(recipe, part, run, accumulate, steps)
            trainer = _Trainer(
                model=model,
                args=arguments,
                train_dataset=dataset,
                data_collator=Collator(processor),
                callbacks=[telling, _Stopping(stop)],
            )
            trainer.remove_callback(PrinterCallback)
            # the Trainer has put it there, from where Llava would hand it on to the vision tower, now and once saved
            vars(model.config).pop("use_cache", None)
            kept = last_checkpoint(run) if resume else None
            _run(trainer, run, part, kept)
        if trainer.state.global_step < trainer.state.max_steps:
            stopped = StoppedError(
                f"{run}: asked to stop at step {trainer.state.global_step}, which is saved: go on with --resume"
            )
            stopped.shared = True
            raise stopped
        _save(trainer, processor, run)
        return Outcome(run / MODEL_FOLDER, trainer.state.global_step)


class _Trainer(Trainer):
    model: Any

    def _load_from_checkpoint(self, checkpoint: str, model: Any = None) -> None:
        """As the model's class reads it: Llava's own saves its weights under older names, which Trainer takes for none
        of the model's, and goes on without a word."""
        saved = type(self.model).from_pretrained(checkpoint, use_safetensors=True, dtype=torch.float32)
        self.model.load_state_dict(saved.state_dict())

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.model.model.vision_tower.eval()  # frozen: the Trainer has set the whole model to training
        return super().compute_loss(model, inputs | {"use_cache": False}, *args, **kwargs)


class _Stopping(TrainerCallback):
    """Saves and ends after the step in which a signal came to any of the processes."""

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._stop.saves = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        asked = self._stop.asked
        if torch.distributed.is_initialized():
            signs = torch.tensor(int(asked), device=args.device)
            torch.distributed.all_reduce(signs)
            asked = bool(signs.item())
        if asked:
            control.should_save = control.should_training_stop = True


def _arguments(
    recipe: VLMRecipe, part: StageRecipe, run: Path, accumulate: int, steps: int
) -> TrainingArguments:
    cuda = torch.cuda.is_available()
    if cuda and recipe.precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise InputError("the GPU has no bfloat16: give precision=fp32")
    arguments = TrainingArguments(
        output_dir=str(run),
        per_device_train_batch_size=part.per_device_batch_size,
        gradient_accumulation_steps=accumulate,
        num_train_epochs=part.epochs,
        learning_rate=part.lr,
        lr_scheduler_type="cosine",
        warmup_steps=part.warmup_steps(steps),
        weight_decay=part.weight_decay,
        bf16=recipe.precision == "bf16",
        deepspeed=recipe.deepspeed,
        ddp_find_unused_parameters=False,  # every batch reaches every trained weight
        dataloader_num_workers=recipe.workers,
        dataloader_pin_memory=cuda,
        remove_unused_columns=False,
        seed=recipe.seed,
        save_strategy="steps",
        save_steps=part.save_every,
        save_total_limit=_KEPT_CHECKPOINTS,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not cuda,
    )
    if arguments.n_gpu > 1:
        raise InputError(
            f"{arguments.n_gpu} GPUs are here for one process: start one each with torchrun --nproc-per-node "
            f"{arguments.n_gpu} -m diffclip.cli -- vlm train …, or choose one with CUDA_VISIBLE_DEVICES=0"
        )
    return arguments


def _check_deepspeed(recipe: VLMRecipe) -> None:
    if recipe.deepspeed is None:
        return
    if not Path(recipe.deepspeed).is_file():
        raise InputError(f"deepspeed {recipe.deepspeed} does not exist: give the path of a DeepSpeed JSON")
    if importlib.util.find_spec("deepspeed") is None:
        raise InputError("the recipe asks for DeepSpeed, which is not installed: run pip install deepspeed")


def _run(trainer: Trainer, run: Path, part: StageRecipe, checkpoint: Path | None) -> None:
    with disk_errors(run):
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        except torch.OutOfMemoryError as error:
            raise DiffCLIPError(
                f"a GPU's memory is short: try a per_device_batch_size below {part.per_device_batch_size}, or "
                "gradient_checkpointing=true"
            ) from error
        except (RuntimeError, SafetensorError) as error:
            raise as_disk_error(error) from error


def _save(trainer: Any, processor: Any, run: Path) -> None:
    """Write RUN/model; all processes call it, as some bring the weights together for it."""
    several = _world() > 1
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped) if several else None
    if _rank() == 0:
        save_vlm(trainer.model, processor, run / MODEL_FOLDER, state)
    trainer.accelerator.wait_for_everyone()


def _rank() -> int:
    return int(os.environ.get("RANK", 0))


def _world() -> int:
    return int(os.environ.get("WORLD_SIZE", 1))


def _nothing(line: str) -> None:
    pass

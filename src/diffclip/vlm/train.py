"""Train one stage with transformers' Trainer, also on several GPUs (torchrun, `accelerate launch`), and resume runs.

A run folder has recipe.yaml, conversations.sha256, metrics.jsonl, the Trainer's checkpoint-N and, at the end, model.

The vision tower is frozen in both stages. Stage 1 trains the connector, stage 2 connector and language model
(arXiv:2310.03744; the paper's Section 5.1).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from torch.utils.data import Dataset, Sampler, SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from diffclip.errors import DiffCLIPError, InputError, StoppedError
from diffclip.files import explain_disk_errors, write_text
from diffclip.training.distributed import has_bf16, native_precision
from diffclip.training.launch import StopRequest
from diffclip.training.logging import LastSteps, drop_records_after, duration, pace
from diffclip.training.run_folder import LOCK_FILE, METRICS_FILE, RECIPE_FILE, lock_folder
from diffclip.vlm.chat import TEMPLATES, image_tokens
from diffclip.vlm.dataset import ConversationSet, GroupedOrder, collate, open_conversations
from diffclip.vlm.files import MODEL_FOLDER, load_language_model, load_vision, load_vlm, save_vlm
from diffclip.vlm.llava import connect, connector_of, freeze
from diffclip.vlm.recipe import StageRecipe, VLMRecipe, read_vlm_recipe

# a resumed run may have other values of these keys, because they change its numbers by rounding at most
_FREE_KEYS = {"gradient_checkpointing", "workers"}
_FREE_STAGE_KEYS = {"json", "images", "per_device_batch_size", "save_every", "start"}
_SAMPLES_FILE = "conversations.sha256"
_LINE_EVERY = 15.0  # seconds


def train_stage(
    recipe: VLMRecipe, stage: int, run: Path, resume: bool = False, say: Callable[[str], None] = print
) -> int:
    """Train `stage` of `recipe` in the folder `run`, save the model to RUN/model, and return the number of steps.

    Under torchrun or `accelerate launch` every process calls this. A resumed run continues from its last complete
    checkpoint, or starts again if it has none. For a finished run the number of steps is 0.

    Args:
        say: called in the first process with a line for the user.

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
            conversations = open_conversations(part.json_file, part.images)
            model, processor = starting_model(recipe, part, stage)
        except DiffCLIPError as error:
            error.shared = True  # every process raises it
            raise
        if is_first:
            stack.enter_context(claim_run(recipe, run, conversations.digest))
        freeze(model, stage)
        _reach_all_weights(model)
        if recipe.gradient_checkpointing:
            # later releases of transformers have the first name, earlier ones the second
            enable = getattr(model, "activation_checkpointing_enable", None)
            (enable or model.gradient_checkpointing_enable)()
        template = TEMPLATES[stage]
        lengths = conversations.token_counts(template, image_tokens(processor), recipe.max_length)
        trainer = StageTrainer(
            run,
            model,
            ConversationSet(conversations, part.images, processor, template, recipe.max_length),
            processor.tokenizer.pad_token_id or 0,
            GroupedOrder(lengths, conversations.has_image(), part.batch_size, recipe.seed),
            stop,
            per_device_train_batch_size=part.per_device_batch_size,
            gradient_accumulation_steps=passes,
            num_train_epochs=part.epochs,
            learning_rate=part.lr,
            lr_scheduler_type="cosine",
            warmup_steps=part.warmup_ratio,  # a value below 1 is a share of all steps
            weight_decay=part.weight_decay,
            bf16=bf16,
            dataloader_num_workers=recipe.workers,
            seed=recipe.seed,
            save_steps=part.save_every,
        )
        trainer.fit(resume)
        if is_first:
            save_vlm(trainer.model, processor, run / MODEL_FOLDER)
        trainer.accelerator.wait_for_everyone()
        return int(trainer.state.global_step)


def is_finished(run: Path) -> bool:
    """Return whether the run in this folder has saved its model."""
    return (run / MODEL_FOLDER).is_dir() and (run / RECIPE_FILE).is_file()


def checkpoints(run: Path) -> list[Path]:
    """List the complete checkpoints, sorted by step: trainer_state.json, which is written last, can be read.

    A folder that a user adds, such as checkpoint-500-keep, is not listed.
    """
    steps = {}
    for file in run.glob("checkpoint-*/trainer_state.json"):
        with suppress(OSError, ValueError):
            json.loads(file.read_text(encoding="utf-8"))
            steps[int(file.parent.name.removeprefix("checkpoint-"))] = file.parent
    return [steps[step] for step in sorted(steps)]


def check_run(recipe: VLMRecipe, run: Path, resume: bool) -> None:
    """Check, without writing anything, that a run of `recipe` (with one stage) may start or continue in `run`."""
    with explain_disk_errors(run):
        names = {path.name for path in run.iterdir()} - {LOCK_FILE} if run.exists() else set()
    if not resume or RECIPE_FILE not in names:
        if not resume and (is_finished(run) or checkpoints(run)):
            raise InputError(
                f"{run} holds a run already: add --resume to go on with it, or choose another --run"
            )
        # a run that stopped before its first checkpoint leaves these files
        files = {name for name in names if not name.startswith("checkpoint-")}
        if files - {RECIPE_FILE, METRICS_FILE, _SAMPLES_FILE} or (names and RECIPE_FILE not in names):
            raise InputError(f"{run} holds other files: choose a new or an empty folder for --run")
        return
    started = read_vlm_recipe(run / RECIPE_FILE)
    if (started.stage1 is None) != (recipe.stage1 is None):
        stage = 1 if started.stage1 is not None else 2
        raise InputError(f"{run} holds a run of stage {stage}: give --stage {stage}, or choose another --run")
    old_settings = _fixed_settings(started)
    for key, value in _fixed_settings(recipe).items():
        if old_settings[key] != value:
            raise InputError(
                f"{run} was started with {key}={old_settings[key]}, not {value}: resume with the same recipe"
            )


def claim_run(recipe: VLMRecipe, run: Path, samples: str) -> IO[str]:
    """Make the folder that `check_run` has checked, and lock it until the returned handle is closed.

    Args:
        samples: digest of the conversations; their file may have moved.
    """
    with explain_disk_errors(run):
        run.mkdir(parents=True, exist_ok=True)
    lock = lock_folder(run)
    file, complete = run / _SAMPLES_FILE, checkpoints(run)
    # remove checkpoints that were not written to the end: training may not save at that step again
    for folder in run.glob("checkpoint-*"):
        if folder.name.partition("-")[2].isdecimal() and folder not in complete:
            shutil.rmtree(folder)
    if not complete:
        write_text(run / RECIPE_FILE, recipe.to_yaml())
        write_text(file, samples)
    elif file.is_file() and file.read_text() != samples:
        raise InputError(f"{run} was started with other conversations: resume with the same JSON")
    return lock


def _fixed_settings(recipe: VLMRecipe) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in recipe.model_dump(mode="json", by_alias=True).items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": item for inner, item in value.items() if inner not in _FREE_STAGE_KEYS}
        elif key not in _FREE_KEYS:
            flat[key] = value
    return flat


class StageTrainer(Trainer):
    """Train in the folder `run` with a given order of samples, and report errors in one line.

    `dataset` has items for `collate`, which pads with the token `padding`. `settings` go to `TrainingArguments`.
    """

    model: Any

    def __init__(
        self,
        run: Path,
        model: Any,
        dataset: Dataset[dict[str, Any]],
        padding: int,
        order: GroupedOrder | SequentialSampler,
        stop: StopRequest,
        **settings: Any,
    ) -> None:
        cuda = torch.cuda.is_available()
        arguments = TrainingArguments(
            output_dir=str(run),
            ddp_find_unused_parameters=False,  # every batch reaches every trained weight
            dataloader_pin_memory=cuda,
            remove_unused_columns=False,
            save_strategy="steps",
            logging_steps=1,
            logging_nan_inf_filter=False,
            report_to="none",
            disable_tqdm=True,
            use_cpu=not cuda,
            **settings,
        )
        if arguments.n_gpu > 1:
            raise InputError(
                f"one process sees {arguments.n_gpu} GPUs: start one for each with torchrun --nproc-per-node "
                f"{arguments.n_gpu} -m diffclip.cli -- vlm train …, or choose a GPU with CUDA_VISIBLE_DEVICES=0"
            )
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=dataset,
            data_collator=partial(collate, padding=padding),
            callbacks=[Reporter(run, order, stop)],
        )
        self._run, self._order = run, order
        self.remove_callback(PrinterCallback)
        # the Trainer has set this key, and Llava would pass it to the vision tower
        vars(self.model.config).pop("use_cache", None)

    def fit(self, resume: bool) -> None:
        """Train to the end, from the last checkpoint of the run if `resume` is set."""
        folders = checkpoints(self._run) if resume else []
        with explain_disk_errors(self._run):
            try:
                self.train(resume_from_checkpoint=str(folders[-1]) if folders else None)
            except InputError as error:
                # the DataLoader puts a worker's traceback before the message when it raises the worker's error again
                raise InputError(str(error).rstrip().rpartition("InputError: ")[2]) from error
            except torch.OutOfMemoryError as error:
                raise DiffCLIPError(
                    "a GPU's memory is too small: try a per_device_batch_size below "
                    f"{self.args.per_device_train_batch_size}, or gradient_checkpointing=true"
                ) from error
        if self.state.global_step < self.state.max_steps:
            stopped = StoppedError(
                f"{self._run}: asked to stop at step {self.state.global_step}, which is saved: go on with --resume"
            )
            stopped.shared = True
            raise stopped

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        return self._order

    def _load_from_checkpoint(self, checkpoint: str, model: Any = None) -> None:
        """Load by the model's class, because Llava saves weights under older names, which the Trainer would ignore."""
        saved = type(self.model).from_pretrained(checkpoint, use_safetensors=True, dtype=torch.float32)
        self.model.load_state_dict(saved.state_dict())

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if hasattr(self.model.model, "vision_tower"):
            self.model.model.vision_tower.eval()  # frozen, but the Trainer has set the whole model to training mode
        return super().compute_loss(model, inputs | {"use_cache": False}, *args, **kwargs)


class Reporter(TrainerCallback):
    """Write metrics, show progress, keep two checkpoints, and stop a run on a signal or a loss that is not finite.

    The first process alone writes RUN/metrics.jsonl, shows progress and removes checkpoints. A line has step, epoch,
    samples, loss, lr, grad_norm, samples_per_second, time and seconds_left. A resumed run first removes the lines of
    steps after its checkpoint. A signal to any of the processes makes all save and stop after the current step.
    """

    def __init__(self, run: Path, order: GroupedOrder | SequentialSampler, stop: StopRequest) -> None:
        self._run, self._order, self._stop = run, order, stop
        self._last_line = time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._stop.saves = True
        self._batch_size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        self._ended: LastSteps = deque(maxlen=51)
        self._add(state.global_step)
        if state.is_world_process_zero:
            drop_records_after(self._run / METRICS_FILE, state.global_step)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the epoch of the order here: in a resumed run of several processes the DataLoader does not set it."""
        if isinstance(self._order, GroupedOrder):
            # after a whole epoch state.epoch is exactly a whole number, because the Trainer adds n / n
            self._order.set_epoch(int(state.epoch))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        stops = torch.tensor(int(bool(self._stop.asked)), device=args.device)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(stops)
        if stops:
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            # keep one more than the newest, in case the newest is not written to the end
            for folder in checkpoints(self._run)[:-2]:
                shutil.rmtree(folder, ignore_errors=True)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not logs or "loss" not in logs:
            return  # the Trainer's summary at the end
        step = state.global_step
        for name in ("loss", "grad_norm"):
            if not math.isfinite(logs.get(name, 0.0)):
                error = DiffCLIPError(f"step {step}: {name} is {logs[name]}: start again with a lower lr")
                error.shared = True  # all processes have the same value
                raise error
        if not state.is_world_process_zero:
            return
        self._add(step)
        rate, remaining = (value or 0.0 for value in pace(self._ended, state.max_steps))
        record = {
            "step": step,
            "epoch": state.epoch,
            "samples": min(step * self._batch_size, round((state.epoch or 0) * len(self._order))),
            "loss": logs["loss"],
            "lr": logs["learning_rate"],
            "grad_norm": logs.get("grad_norm"),
            "samples_per_second": round(rate, 2),
            "time": round(time.time(), 3),
            "seconds_left": round(remaining, 1),
        }
        with explain_disk_errors(self._run / METRICS_FILE), (self._run / METRICS_FILE).open("a") as file:
            file.write(json.dumps(record) + "\n")
        if time.monotonic() - self._last_line > _LINE_EVERY or step == state.max_steps:
            self._last_line = time.monotonic()
            print(
                f"{self._run}: step {step}/{state.max_steps}  loss {logs['loss']:.3f}  {rate:,.1f} samples/s  "
                f"{duration(remaining)} left",
                file=sys.stderr,
            )

    def _add(self, step: int) -> None:
        self._ended.append((step, step * self._batch_size, time.monotonic()))


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
    parts = {"connector": connector_of(model.config), "vision": started.vision}
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

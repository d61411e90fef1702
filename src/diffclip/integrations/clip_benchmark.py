"""Our models in clip_benchmark (LAION-AI/CLIP_benchmark): a loader for its `--model_type`, and its command line.

The command line accepts only model types that it knows when it reads its arguments, so call `register` first:

    from diffclip.integrations.clip_benchmark import register
    register()
    clip_benchmark.cli.main()
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from diffclip.config import ABLATIONS, MODEL_NAMES, VARIANTS, variant_of
from diffclip.errors import InputError, explain_errors, require_group
from diffclip.files import check_writable
from diffclip.model_source import find_model, load_with_origin

if TYPE_CHECKING:
    from diffclip.data.transforms import EvalTransform
    from diffclip.model import CLIP
    from diffclip.tokenizer import Tokenizer

MODEL_TYPE = "diffclip"
RANDOM = "random"
# `run_command` puts these before the user's options; of equal options the last one counts. clip_benchmark's default for
# --output has the last part of the weights' path only, so two files called checkpoint_best.pt would share an output.
DEFAULTS = {
    "--model": MODEL_TYPE,
    "--pretrained": RANDOM,
    "--model_type": MODEL_TYPE,
    "--output": "{dataset}_{pretrained_full_path}_{model}_{language}_{task}.json",
}
_HELP = (
    "clip_benchmark on our models, for example: diffclip benchmark eval --pretrained runs/clip --dataset wds/cifar10 "
    "--dataset_root sets/cifar10 --no_amp\n--pretrained takes the MODEL of diffclip evaluate."
)
# How clip_benchmark's errors about unusable sets begin; they are AssertionError or ValueError
_REFUSALS = (
    "Classes not specified",
    "Templates not specified",
    "Dataset does not support",
    "Unsupported dataset",
)


def register() -> None:
    """Make "diffclip" a model type of clip_benchmark, for functions and command line; a second call changes nothing."""
    require_group("eval", "clip_benchmark", "requests", "sklearn")
    from clip_benchmark import models

    models.TYPE2FUNC[MODEL_TYPE] = load_diffclip
    if MODEL_TYPE not in models.MODEL_TYPES:
        models.MODEL_TYPES.append(MODEL_TYPE)  # --model_type takes its choices from this list


def load_diffclip(
    model_name: str, pretrained: str | None, cache_dir: str | None = None, device: str | torch.device = "cpu"
) -> tuple[CLIP, EvalTransform, Tokenizer]:
    """Load a model in evaluation mode on `device`, its transform and its tokenizer, as clip_benchmark asks for them.

    Args:
        model_name: any label. If it is one of our models' names, it must match the weights; for a published
            file, which has no configuration, it names the model.
        pretrained: a model that `diffclip.load` takes. "random" (or nothing) gives the model called `model_name` random
            weights, and a line on stderr says so.
        cache_dir: not used; the hub's client has its own settings (`HF_HOME`).

    Raises:
        InputError: no such weights, or weights of another model than `model_name`.
    """
    known_name = model_name if model_name in MODEL_NAMES else None
    loaded = load_with_origin(_source(model_name, pretrained), known_name)
    if model_name in (*VARIANTS, *ABLATIONS) and variant_of(loaded.model.config) != model_name:
        raise InputError(f"{pretrained} is no {model_name}: name it {variant_of(loaded.model.config)}")
    return loaded.model.to(device), loaded.preprocess, loaded.tokenizer


def _source(model_name: str, pretrained: str | None) -> str:
    if pretrained and pretrained != RANDOM:
        return pretrained
    if model_name == MODEL_TYPE:
        raise InputError("no model to measure: give --pretrained a run, a saved folder or a file")
    return model_name


def run_command(arguments: list[str]) -> None:
    """Run clip_benchmark's command line on `arguments`, with `DEFAULTS` for `eval`.

    Raises:
        InputError: the group `eval` is missing, no such weights or set, a linear probe without CUDA, or an output that
            cannot be written.
        SystemExit: from clip_benchmark's parser, for `--help` (0) and for arguments that it refuses (2).
    """
    register()
    from clip_benchmark import cli

    added = [word for pair in DEFAULTS.items() for word in pair]
    if not arguments or {"-h", "--help"} & set(arguments):
        print(f"{_HELP} Defaults of eval here: {' '.join(added)}\n", flush=True)
    if arguments[:1] == ["eval"]:
        arguments = ["eval", *added, *arguments[1:]]
    before = sys.argv
    sys.argv = ["diffclip benchmark", *(arguments or ["--help"])]
    try:
        _, chosen = cli.get_parser_args()
    finally:
        sys.argv = before
    if chosen.which == "build":
        wrong = "give JSON files of results that `diffclip benchmark eval` wrote"
        with explain_errors(f"{', '.join(chosen.files)} cannot be built into a table", wrong):
            cli.main_build(chosen)
        return
    # check now what would fail only after long work
    if chosen.task == "linear_probe" and not torch.cuda.is_available():
        raise InputError(
            "clip_benchmark's linear probe needs CUDA: use diffclip evaluate --task linear-probe"
        )
    if chosen.model_type == MODEL_TYPE and not chosen.pretrained_model:
        for model_name, pretrained in product(chosen.model, chosen.pretrained):
            find_model(_source(model_name, pretrained))
    chosen.output = _Output(chosen.output)
    try:
        cli.main_eval(chosen)
    except (AssertionError, FileNotFoundError, ValueError) as error:
        if not isinstance(error, FileNotFoundError) and not str(error).startswith(_REFUSALS):
            raise
        raise InputError(
            f"clip_benchmark says: {str(error).rstrip('.')}; a folder in its layout is --dataset wds/NAME "
            "--dataset_root FOLDER, and one of captions needs --task zeroshot_retrieval"
        ) from None


class _Output(str):
    """A template for the path of a results file; slashes in names become `_`."""

    def format(self, *args: object, **fields: object) -> str:
        """Return the path if it can be written. Check this now: clip_benchmark opens the file after the last image."""
        fields = {key: str(value).replace("/", "_") for key, value in fields.items()}
        names = ", ".join(f"{{{name}}}" for name in fields)
        with explain_errors(f"the template {self} of --output cannot be filled in", f"use {names}"):
            name = super().format(*args, **fields)
        check_writable(name)
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        return name

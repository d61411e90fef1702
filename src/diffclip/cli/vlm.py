"""`diffclip vlm`: a language model that answers questions about images through CLIP or DiffCLIP."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffclip.cli.vlm_evaluate import evaluate, evaluate_models

if TYPE_CHECKING:
    from diffclip.vlm.demo import DemoSettings

vlm = typer.Typer(
    help="Train a language model that sees through CLIP or DiffCLIP, and ask it.", no_args_is_help=True
)
vlm.command("evaluate")(evaluate)


@vlm.callback()
def silence_transformers() -> None:
    """Keep transformers' warnings and progress bars from the terminal."""
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


@vlm.command("train")
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's YAML file, or the name of a built-in recipe.")],
    stage: Annotated[
        int, typer.Option(min=1, max=2, help="1 trains the connector, 2 connector and language model.")
    ],
    changes: Annotated[
        list[str] | None, typer.Argument(help="Changes to the recipe.", metavar="[KEY=VALUE]...")
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Default: runs/RECIPE-stageN-sSEED.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")] = False,
) -> None:
    """Train a language model to see through a frozen vision tower; each of the two stages is a run.

    Example: diffclip vlm train --stage 1 vlm_qwen05b_stage1 --run runs/vlm-stage1

    On several GPUs: torchrun --nproc-per-node 4 -m diffclip.cli -- vlm train --stage 1 RECIPE … (or accelerate launch)

    SIGTERM and SIGUSR1 save the state and end with exit code 75; --resume continues from there.
    """
    from diffclip.errors import DiffCLIPError, require_group

    require_group("vlm", "transformers", "accelerate")
    from diffclip.vlm.recipe import read_vlm_recipe

    resolved = read_vlm_recipe(recipe, changes or [])
    resolved.stage(stage)
    from diffclip.vlm.train import train_stage

    run = run or Path("runs") / f"{Path(recipe).stem}-stage{stage}-s{resolved.seed}"
    is_first = os.environ.get("RANK", "0") == "0"
    try:
        steps = train_stage(resolved, stage, run, resume)
    except DiffCLIPError as error:
        if error.shared and not is_first:
            raise typer.Exit(error.exit_code) from None
        raise
    if is_first and steps:
        print(f"{run}: {steps} steps; the model is {run / 'model'}")


@vlm.command("ask")
def ask(
    image: Annotated[Path, typer.Argument(help="An image file.")],
    questions: Annotated[list[str], typer.Argument(help="Each is asked alone.", metavar="QUESTION...")],
    model: Annotated[
        Path, typer.Option(help="A run of `diffclip vlm train`, or a model that it saved.", exists=True)
    ],
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Cut answers off after this many tokens.")] = 128,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each answer.")] = False,
) -> None:
    """Ask a trained model about an image; it answers greedily.

    Example: diffclip vlm ask kitchen.jpg "Is there a cat in the image?" --model runs/vlm-stage2
    """
    from diffclip.data.images import read_image
    from diffclip.errors import InputError, require_group
    from diffclip.model_source import pick_device

    require_group("vlm", "transformers")
    if not all(question.strip() for question in questions):
        raise InputError("a question is empty: write a question")
    opened = read_image(image)
    where = pick_device(device)
    from diffclip.vlm.chat import answer
    from diffclip.vlm.files import load_vlm

    network, processor = load_vlm(model)
    answers = answer(network.to(where), processor, [opened] * len(questions), questions, max_new_tokens)
    for question, text in zip(questions, answers, strict=True):
        if as_json:
            print(json.dumps({"image": str(image), "question": question, "answer": text}, ensure_ascii=False))
        else:
            print(text)


@vlm.command("data")
def vlm_data(
    source: Annotated[Path, typer.Argument(help="Conversations in LLaVA's JSON.", metavar="SOURCE.json")],
    target: Annotated[Path, typer.Argument(help="File for the kept samples.", metavar="TARGET.json")],
    images: Annotated[str, typer.Option(help="Start of the images' paths.", metavar="PREFIX")] = "coco/",
) -> None:
    """Keep the conversations about one set of images, and count the others.

    Example: diffclip vlm data llava_v1_5_mix665k.json coco.json --images coco/

    Samples without an image, and samples that training would refuse, are left out; the first unusable one is named.
    """
    from diffclip.errors import require_group

    require_group("vlm", "transformers")
    from diffclip.vlm.conversations import filter_conversations

    counts, fault = filter_conversations(source, target, images)
    print(f"{target}: kept {counts['kept']:,} of {counts.total():,} samples of {source}")
    del counts["kept"]
    for reason, number in counts.items():
        print(f"  left out: {number:>9,} {reason}")
    if fault:
        print(f"the first unusable sample: {fault}")


@vlm.command("demo")
def demo(
    folder: Annotated[Path, typer.Option(help="Folder for all results.")] = Path("runs/vlm_scenes"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of models of each kind, with seeds from 0.")] = 1,
) -> None:
    """Train CLIP and DiffCLIP on drawn scenes, then a language model with each, and ask both about new scenes.

    Example: diffclip vlm demo --folder runs/vlm_scenes

    Takes about 22 minutes on a CPU core, and about 16 for each further seed. After a stop, the same command continues
    from the last checkpoint and reuses finished parts.
    """
    from diffclip.errors import StoppedError, require_group

    require_group("train", "lightning", "tensorboard", "matplotlib")
    require_group("vlm", "transformers", "accelerate")
    try:
        run_vlm_demo(folder, range(seeds), say=print)
    except StoppedError as error:
        raise StoppedError(f"{folder}: stopped, the state is saved: the same command goes on") from error


def run_vlm_demo(
    folder: Path, seeds: Sequence[int], say: Callable[[str], None], settings: DemoSettings | None = None
) -> Path:
    """Train and evaluate everything in `folder`; return its page, `report.html`.

    Raises:
        InputError: the folder has other files, or the disk is full.
        StoppedError: a signal asked to stop; the next call goes on.
    """
    import torch

    from diffclip.cli.progress import showing_progress
    from diffclip.report.page import write_report
    from diffclip.scenes.questions import TOPICS
    from diffclip.vlm.demo import DemoSettings, train_models
    from diffclip.vlm.pope import open_questions

    settings = settings or DemoSettings()
    runs = train_models(folder, seeds, say, lambda part: showing_progress(part, {}), settings)
    records = folder / "pope.jsonl"
    for blind, topic in product((True, False), TOPICS):
        questions = open_questions(folder / "questions" / topic, None, f"scenes-{topic}", blind)
        evaluate_models([str(run) for run in runs], questions, records, 100, torch.device("cpu"))
    page = write_report(
        [records],
        folder / "report.html",
        title="Language models that see scenes through CLIP and DiffCLIP",
        command=shlex.join(["diffclip", "vlm", "demo", "--folder", str(folder), "--seeds", str(len(seeds))]),
    )
    say(f"the page: {page}")
    return page

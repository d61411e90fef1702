"""`diffclip vlm`: a language model that answers questions about images through CLIP or DiffCLIP."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from diffclip.cli.console import Changes, Device, show_progress, with_plugins
from diffclip.cli.demo import explain_stops
from diffclip.errors import InputError, require_group, require_report
from diffclip.files import check_writable
from diffclip.maps.view import check_encoding
from diffclip.sources.load import pick_device
from diffclip.training.stopping import exit_on_signals

vlm = typer.Typer(
    help="Train a language model that sees through CLIP or DiffCLIP, and ask it.", no_args_is_help=True
)


@vlm.callback()
def silence_transformers() -> None:
    """Keep transformers' warnings and progress bars from the terminal."""
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


@vlm.command("train")
@with_plugins
@exit_on_signals()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's YAML file, or the name of a built-in recipe.")],
    stage: Annotated[
        int, typer.Option(min=1, max=2, help="1 trains the connector, 2 connector and language model.")
    ],
    changes: Changes = None,
    run: Annotated[Path | None, typer.Option(help="Default: runs/RECIPE-stageN-sSEED.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint.")] = False,
) -> None:
    """Train a language model to see through a frozen vision tower; each of the two stages is a run.

    Example: diffclip vlm train --stage 1 vlm_qwen05b_stage1 --run runs/vlm-stage1

    On several GPUs: torchrun --nproc-per-node 4 -m diffclip.cli -- vlm train --stage 1 RECIPE … (or accelerate launch)

    SIGTERM, SIGUSR1 and Ctrl-C save the state and end with exit code 75; --resume continues from there.
    """
    require_group("vlm", "transformers", "accelerate")
    from diffclip.training.recipe_file import find_recipe

    find_recipe(recipe, "vlm_")
    from diffclip.vlm.settings import read_vlm_recipe

    resolved = read_vlm_recipe(recipe, changes or [])
    conversations = resolved.stage(stage).json_file
    if not resume and not Path(conversations).exists():
        raise InputError(f"{conversations} does not exist: give stage{stage}.json=FILE, the conversations")
    from diffclip.vlm.train import train_stage

    run = run or Path("runs") / f"{Path(recipe).stem}-stage{stage}-s{resolved.seed}"
    steps = train_stage(resolved, stage, run, resume)
    if steps and os.environ.get("RANK", "0") == "0":
        print(f"{run}: {steps} steps; the model is {run / 'model'}")


@vlm.command("ask")
@with_plugins
def ask(
    image: Annotated[Path, typer.Argument(help="An image file.", exists=True, dir_okay=False)],
    questions: Annotated[list[str], typer.Argument(help="Each is asked alone.", metavar="QUESTION")],
    model: Annotated[
        Path, typer.Option(help="A run of `diffclip vlm train`, or a model that it saved.", exists=True)
    ],
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each answer.")] = False,
) -> None:
    """Ask a trained model about an image, with greedy decoding.

    Example: diffclip vlm ask kitchen.jpg "Is there a cat in the image?" --model runs/vlm-stage2
    """
    require_group("vlm", "transformers")
    if not all(question.strip() for question in questions):
        raise InputError("a question is empty: write a question")
    check_encoding(questions)
    from diffclip.data.images import read_image

    opened = read_image(image)
    chosen_device = pick_device(device)
    from diffclip.vlm.chat import answer
    from diffclip.vlm.files import load_vlm

    network, processor = load_vlm(model)
    answers = answer(network.to(chosen_device), processor, [opened] * len(questions), questions)
    for question, text in zip(questions, answers, strict=True):
        reply = {"image": str(image), "question": question, "answer": text}
        print(json.dumps(reply) if as_json else text)  # in ASCII: a file name may be invalid Unicode


@vlm.command("evaluate")
@with_plugins
def evaluate(
    models: Annotated[
        list[str], typer.Argument(help="Runs of `diffclip vlm train`, or saved models.", metavar="MODEL")
    ],
    data: Annotated[Path, typer.Option(help="Folder of coco_pope_random.json and POPE's other two files.")],
    output: Annotated[Path, typer.Option(help="File for the records, as JSON lines; other records stay.")],
    images: Annotated[
        Path | None, typer.Option(help="Folder of the images (COCO's val2014); default: DATA/images.")
    ] = None,
    blind: Annotated[bool, typer.Option("--blind", help="Ask without images: how much is guessed?")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Questions in a batch.")] = 16,
    device: Device = "auto",
) -> None:
    """Ask models POPE's questions, "Is there a dog in the image?", and count the right answers.

    Example: diffclip vlm evaluate runs/vlm --data POPE/output/coco --images val2014 --output pope.jsonl

    Example: diffclip vlm evaluate runs/vlm_clip runs/vlm_diffclip --data scenes/questions --output pope.jsonl

    A finished model is not asked again. The same command with --blind adds the answers without the images.
    `diffclip report` makes the paper's Table 3 from the records.
    """
    require_group("vlm", "transformers")
    require_group("report", "pandas", "scipy", "statsmodels")
    if blind and images is not None:
        raise InputError("--blind asks without the images: leave --images out")
    check_writable(output)
    from diffclip.cli.evaluate_table import show_records
    from diffclip.evaluation.results_file import ResultsFile
    from diffclip.vlm.pope import evaluate_models, open_questions

    questions, results = open_questions(data, images, blind=blind), ResultsFile(output)
    records = evaluate_models(models, questions, results, batch_size, pick_device(device), show_progress)
    show_records(records, headlines_only=False)


@vlm.command("demo")
@with_plugins
def demo(
    folder: Annotated[Path, typer.Option(help="Folder for all results.")] = Path("runs/vlm_scenes"),
    seeds: Annotated[int, typer.Option(min=1, help="Number of models of each kind, with seeds from 0.")] = 1,
) -> None:
    """Train CLIP and DiffCLIP on drawn scenes, then a language model with each, and ask both about new scenes.

    Example: diffclip vlm demo --folder runs/vlm_scenes

    After a stop, the same command continues from the last checkpoint and reuses finished parts.
    """
    require_group("train", "lightning")
    require_report()
    require_group("vlm", "transformers", "accelerate")
    with explain_stops(folder):
        from diffclip.cli.evaluate_table import show_records
        from diffclip.vlm.demo import run_vlm_demo

        page, records = run_vlm_demo(folder, range(seeds), print, show_progress)
    show_records(records, headlines_only=True)
    print(f"The page: {page}")

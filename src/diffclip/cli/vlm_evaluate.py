"""`diffclip vlm evaluate`: yes/no questions about pictures, asked of language models that see through DiffCLIP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(help="Run folders of `diffclip vlm train`, or saved models.", metavar="MODEL..."),
    ],
    data: Annotated[
        Path,
        typer.Option(
            help="The folder with coco_pope_random.json, coco_pope_popular.json and coco_pope_adversarial.json."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            help="Write the records to this file, as JSON lines, beside what it holds of others; the outcome of every "
            "question and the answers themselves go beside it. What was stopped goes on from there."
        ),
    ],
    task: Annotated[str, typer.Option(help="What is measured.", metavar="pope")] = "pope",
    images: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the pictures (COCO's val2014); default: images in the folder of questions."
        ),
    ] = None,
    blind: Annotated[
        bool,
        typer.Option(
            "--blind", help="Ask without the pictures: what is right then was guessed from the words."
        ),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Ask only the first so many questions of each file.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What records call the set; default: as its folder.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Questions at once.")] = 16,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto prefers CUDA.")] = "auto",
) -> None:
    """Ask models POPE's questions, "Is there a dog in the image?", and count what is right.

    Example: diffclip vlm evaluate runs/vlm --task pope --data POPE/output/coco --images val2014 --output pope.jsonl

    Example: diffclip vlm evaluate runs/vlm_clip runs/vlm_diffclip --data scenes/questions --output pope.jsonl

    Several models are compared with the first one on the same questions. The same call with --blind adds what they
    answer without the pictures. diffclip report makes the paper's Table 3 from the records.
    """
    from diffclip.cli.vlm_evaluate_run import Request, carry_out
    from diffclip.errors import InputError, unknown
    from diffclip.files import check_writable
    from diffclip.model_source import pick_device
    from diffclip.vlm.pope import POPE

    if task != POPE:
        raise unknown("task", task, [POPE])
    if blind and images is not None:
        raise InputError("--blind asks without the pictures: leave --images out")
    check_writable(output)
    if output.exists() and not output.is_file():
        raise InputError(f"{output} is no file: answers are kept beside the --output, give a file")
    carry_out(Request(models, data, output, images, blind, limit, name, batch_size, pick_device(device)))

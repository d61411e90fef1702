"""`diffclip vlm ask`: questions about a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def ask(
    image: Annotated[Path, typer.Argument(help="A picture.")],
    questions: Annotated[
        list[str], typer.Argument(help="Questions about it, each asked alone.", metavar="QUESTION...")
    ],
    model: Annotated[Path, typer.Option(help="A run of `diffclip vlm train`, or a saved model's folder.")],
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Where an answer is cut off.")] = 128,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object an answer.")] = False,
) -> None:
    """Ask a trained model about a picture; it answers with its likeliest words.

    Example: diffclip vlm ask kitchen.jpg "Is there a cat in the image?" --model runs/vlm-stage2
    """
    import json

    from diffclip.data.images import read_image
    from diffclip.errors import InputError, require_group
    from diffclip.model_source import pick_device

    require_group("vlm", "transformers")
    if not all(question.strip() for question in questions):
        raise InputError("a question is empty: write what you want to know")
    picture = read_image(image)
    where = pick_device(device)

    from diffclip.vlm.ask import answer
    from diffclip.vlm.folders import load_vlm

    network, processor = load_vlm(model)
    answers = answer(network.to(where), processor, [picture] * len(questions), questions, max_new_tokens)
    for question, text in zip(questions, answers, strict=True):
        if as_json:
            print(json.dumps({"image": str(image), "question": question, "answer": text}, ensure_ascii=False))
        else:
            print(text)

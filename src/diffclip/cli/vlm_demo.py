"""The work of `diffclip vlm demo`: train, ask, and write a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import torch

from diffclip.cli.vlm_evaluate import evaluate_models
from diffclip.report.page import write_report
from diffclip.scenes.export import QUESTION_IMAGES
from diffclip.vlm.demo import DemoSettings, train_models
from diffclip.vlm.pope import open_questions
from diffclip.vlm.scenes import TOPICS

RECORDS, PAGE = "pope.jsonl", "report.html"
_BATCH = 100


def run_vlm_demo(
    folder: Path, seeds: Sequence[int], say: Callable[[str], None], settings: DemoSettings | None = None
) -> Path:
    """Train and evaluate everything in `folder`; return its page, `report.html`.

    Raises:
        InputError: the folder has other files, or the disk is full.
        StoppedError: a signal asked to stop; the next call goes on.
    """
    runs = train_models(folder, seeds, say, settings)
    records = folder / RECORDS
    images = folder / "questions" / "kinds" / QUESTION_IMAGES
    for blind, topic in product((True, False), TOPICS):
        data = folder / "questions" / topic
        questions = open_questions(data, None if blind else images, f"scenes-{topic}", blind=blind)
        evaluate_models([str(run) for run in runs], questions, records, _BATCH, torch.device("cpu"))
    page = write_report(
        [records],
        folder / PAGE,
        title="Language models that see scenes through CLIP and DiffCLIP",
        command=f"diffclip vlm demo --folder {folder}" + (f" --seeds {len(seeds)}" if len(seeds) > 1 else ""),
    )
    say(f"the page: {page}")
    return page

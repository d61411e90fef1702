"""The work of `diffclip vlm demo`: train, ask, and write a page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import torch

from diffclip.cli.progress import showing_progress
from diffclip.cli.vlm_evaluate import evaluate_models
from diffclip.report.page import write_report
from diffclip.scenes.questions import TOPICS
from diffclip.vlm.demo import DemoSettings, train_models
from diffclip.vlm.pope import open_questions

_BATCH = 100


def run_vlm_demo(
    folder: Path, seeds: Sequence[int], say: Callable[[str], None], settings: DemoSettings | None = None
) -> Path:
    """Train and evaluate everything in `folder`; return its page, `report.html`.

    Raises:
        InputError: the folder has other files, or the disk is full.
        StoppedError: a signal asked to stop; the next call goes on.
    """
    runs = train_models(
        folder, seeds, say, lambda part: showing_progress(part, {}), settings or DemoSettings()
    )
    records = folder / "pope.jsonl"
    for blind, topic in product((True, False), TOPICS):
        questions = open_questions(folder / "questions" / topic, None, f"scenes-{topic}", blind)
        evaluate_models([str(run) for run in runs], questions, records, _BATCH, torch.device("cpu"))
    page = write_report(
        [records],
        folder / "report.html",
        title="Language models that see scenes through CLIP and DiffCLIP",
        command=shlex.join(["diffclip", "vlm", "demo", "--folder", str(folder), "--seeds", str(len(seeds))]),
    )
    say(f"the page: {page}")
    return page

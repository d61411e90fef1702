"""The way to a language model that sees, on the built-in scenes: towers, language model, both stages, for both models.

CLIP and DiffCLIP have the same pictures, language model, conversations, order and budget. What is there is used again,
and what was stopped goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diffclip.scenes import write_scenes
from diffclip.training.complete import complete_run
from diffclip.training.recipe import read_recipe
from diffclip.vlm.language_model import Schooling, make_language_model
from diffclip.vlm.recipe import STAGES, read_vlm_recipe
from diffclip.vlm.run import is_finished, last_checkpoint
from diffclip.vlm.scenes import STAGES as CONVERSATIONS
from diffclip.vlm.scenes import Talks, write_conversations, write_question_files
from diffclip.vlm.train import train_stage

MODELS = ("CLIP", "DiffCLIP")
TOWER_RECIPE, RECIPE = "scenes_demo", "vlm_scenes"
QUESTIONS = "questions"


@dataclass(frozen=True)
class Size:
    """How much of everything; the defaults are the demonstration's."""

    train: int = 6000
    val: int = 500
    test: int = 1000
    questioned: int = 500
    talks: Talks = field(default_factory=Talks)
    schooling: Schooling = field(default_factory=Schooling)
    tower: Sequence[str] = ()
    recipe: Sequence[str] = ()
    """Changes to the two recipes."""


def train_models(
    folder: Path, seeds: Sequence[int], say: Callable[[str], None], size: Size | None = None
) -> list[Path]:
    """Make or complete everything that is trained in `folder`, and return the runs of stage 2: CLIP's and DiffCLIP's of
    each seed. `folder/questions` holds the questions to ask them.

    A seed is that of the tower, the connector and the order; the language model and the conversations are common.

    Raises:
        InputError: the folder holds something else, or the disk is full.
        StoppedError: a signal asked to stop; the next call goes on.
    """
    size = size or Size()
    scenes = folder / "scenes"
    drawn = write_scenes(scenes, size=64, train=size.train, val=size.val, test=size.test, seed=0, workers=2)
    say(f"scenes: {'drawn in' if drawn else 'reusing'} {scenes}")
    talks = folder / "conversations"
    made = write_conversations(talks, size.talks)
    say(f"conversations: {'written to' if made else 'reusing'} {talks} ({size.talks.pictures:,} pictures)")
    made = write_question_files(folder / QUESTIONS, size.questioned)
    say(f"questions: {'written to' if made else 'reusing'} {folder / QUESTIONS}")
    language_model = folder / "language_model"
    if language_model.is_dir():
        say(f"language model: reusing {language_model}")
    else:
        say(f"language model: training in {language_model}")
        make_language_model(language_model, schooling=size.schooling, say=say)
    return [_see(folder, model, seed, say, size) for seed in seeds for model in MODELS]


def _see(folder: Path, model: str, seed: int, say: Callable[[str], None], size: Size) -> Path:
    """A tower and both stages; returns the run of stage 2."""
    tower = folder / f"{model}-s{seed}"
    captions = folder / "scenes" / "captions"
    data = [f"data.{split}={captions / split}" for split in ("train", "val")]
    complete_run(
        read_recipe(TOWER_RECIPE, [f"model={model}", f"seed={seed}", *data, *size.tower]), tower, say
    )
    runs = [folder / f"{tower.name}-stage{stage}" for stage in STAGES]
    talks = folder / "conversations"
    changes = [
        *(f"vision={tower}", f"language_model={folder / 'language_model'}", f"seed={seed}"),
        *(f"stage{stage}.images={talks / 'images'}" for stage in STAGES),
        *(f"stage{stage}.json={talks / file}" for stage, file in zip(STAGES, CONVERSATIONS, strict=True)),
        f"stage2.start={runs[0]}",
        *size.recipe,
    ]
    recipe = read_vlm_recipe(RECIPE, changes)
    for stage, run in zip(STAGES, runs, strict=True):
        if is_finished(run):
            say(f"{run.name}: reusing the finished run in {run}")
            continue
        begun = last_checkpoint(run) is not None
        say(f"{run.name}: {'going on with' if begun else 'training in'} {run}")
        train_stage(recipe, stage, run, resume=begun, say=say)
    return runs[-1]

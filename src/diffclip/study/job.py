"""One run of a study in a process of its own: `python -m diffclip.study.job FILE`, or a job of SLURM.

The file has all that the run needs (`Job`). Its end is a file beside it (`JobResult`), so that a study can be started
again at any time and finds what its runs did meanwhile.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import torch
from pydantic import BaseModel, ValidationError

from diffclip.errors import DivergedError, StoppedError
from diffclip.evaluation.records import RESULTS_FILE
from diffclip.evaluation.results_file import ResultsFile
from diffclip.evaluation.run import Sets, run_entries
from diffclip.evaluation.suite import Entry
from diffclip.files import write_text
from diffclip.sources.load import load_with_origin
from diffclip.training.launch import Hardware
from diffclip.training.logging import format_error
from diffclip.training.recipe import Recipe
from diffclip.training.run import train
from diffclip.training.stopping import STOP_SIGNALS

_DRAWS = 3  # number of draws of each task that draws at random
_BATCH = 256  # images per batch of the evaluation


class JobResult(BaseModel):
    """The end of a job: the exit code and message of a failure, or what it measured. `diverged` is the step."""

    digest: str = ""
    code: int = 0
    line: str = ""
    diverged: int | None = None
    suite_seconds: float | None = None


class Job(BaseModel):
    """Train `recipe` in the folder `run`, or resume it there, and evaluate the model with `entries` on `sets`.

    `threads` is the number of CPU threads; `digest` identifies the settings.
    """

    run: Path
    recipe: Recipe
    entries: list[Entry]
    sets: Path
    device: str
    threads: int
    digest: str

    @property
    def name(self) -> str:
        """The name of the run: its folder below the folder of the runs."""
        return "/".join(self.run.parts[-2:])

    def beside(self, suffix: str) -> Path:
        """Return the path of a file beside the folder of the run."""
        return self.run.with_name(f"{self.run.name}.{suffix}")

    def write(self) -> None:
        """Write the file of the job, and forget how an earlier process ended."""
        write_text(self.beside("job.json"), self.model_dump_json(indent=1) + "\n")
        self.beside("ended.json").unlink(missing_ok=True)

    def end(self, ended: JobResult) -> None:
        """Write how the job ended."""
        ended.digest = self.digest
        write_text(self.beside("ended.json"), ended.model_dump_json() + "\n")

    def is_written(self) -> bool:
        """Tell whether the file of the job has these settings."""
        try:
            return Job.model_validate_json(self.beside("job.json").read_bytes()).digest == self.digest
        except (OSError, ValidationError):
            return False

    def ended(self) -> JobResult | None:
        """Return how the job ended; None if it has not ended, or if it ended with other settings."""
        try:
            ended = JobResult.model_validate_json(self.beside("ended.json").read_bytes())
        except (OSError, ValidationError):
            return None
        return ended if ended.digest == self.digest else None


def run_job(file: str) -> int:
    """Do the job in `file`, write how it ended, and return the exit code."""
    job = Job.model_validate_json(Path(file).read_bytes())
    for number in STOP_SIGNALS:  # outside of the training's steps they raise KeyboardInterrupt
        signal.signal(number, signal.default_int_handler)
    try:
        ended = _train_and_evaluate(job)
    except (StoppedError, KeyboardInterrupt):
        ended = JobResult(code=StoppedError.exit_code)
    except Exception as error:
        traceback.print_exc()
        ended = JobResult(code=getattr(error, "exit_code", 1), line=format_error(error))
    job.end(ended)
    return ended.code


def run_job_on_cluster(file: str) -> None:
    """Do the job in `file`, with its output in the log beside the run. If SLURM asked it to save because its time ends,
    queue it again; not after `scancel`."""
    with open(file.removesuffix("job.json") + "log", "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    if run_job(file) != StoppedError.exit_code:
        return
    number = os.environ["SLURM_JOB_ID"]
    command = ["squeue", "--noheader", "--format=%T", f"--jobs={number}"]
    state = subprocess.run(command, capture_output=True, text=True, check=False)
    if state.stdout.strip() == "RUNNING":
        print("saved; queued again", flush=True)
        subprocess.run(["scontrol", "requeue", number], check=True)


def _train_and_evaluate(job: Job) -> JobResult:
    torch.set_num_threads(job.threads)
    try:
        train(job.recipe, job.run, True, Hardware(accelerator="cuda" if job.device == "cuda" else "cpu"))
    except DivergedError as error:
        print(error, file=sys.stderr)
        return JobResult(diverged=error.step)
    if not job.entries:
        return JobResult()
    loaded, seconds = load_with_origin(str(job.run)), 0.0
    loaded.model.to(job.device)
    results = ResultsFile(job.run / RESULTS_FILE)
    finished = run_entries(loaded, job.entries, results, Sets(job.sets), range(_DRAWS), batch_size=_BATCH)
    for measured in finished:
        if measured.error:
            raise type(measured.error)(f"{measured.entry} failed: {measured.error}")
        print(f"{measured.entry}: {measured.seconds:.1f} s", flush=True)
        seconds += measured.records[0].seconds or 0.0  # also of results that an earlier process measured
    return JobResult(suite_seconds=round(seconds, 2))


if __name__ == "__main__":
    sys.exit(run_job(sys.argv[1]))

"""The executors of a study start its jobs: on this machine, with a GPU for each job, or on SLURM through submitit.

An executor starts jobs and says which of them have not ended; whether a job succeeded is in its own file. `pause` is
the time between two questions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from diffclip.errors import InputError, require_group
from diffclip.study.job import Job, JobResult, run_job_on_cluster
from diffclip.training.logging import format_error
from diffclip.training.stopping import die_with_parent


def visible_gpus() -> list[str]:
    """List the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",") if given else [str(index) for index in range(torch.cuda.device_count())]


class Local:
    """Up to `workers` processes on this machine, spread over the GPUs; each sees only its own."""

    pause = 0.2

    def __init__(self, workers: int, device: str) -> None:
        gpus = visible_gpus() if device == "cuda" else [""]
        self._slots = [gpus[index % len(gpus)] for index in range(workers)]
        self._running: dict[str, tuple[subprocess.Popen[bytes], str]] = {}

    def free(self) -> int:
        """Return how many more jobs can be started now."""
        return len(self._slots)

    def start(self, jobs: Sequence[Job]) -> None:
        """Start a process for each job, whose file is written."""
        for job in jobs:
            gpu = self._slots.pop(0)
            try:
                self._running[job.name] = _start_process(job, gpu), gpu
            except OSError as error:
                self._slots.append(gpu)
                job.end(JobResult(code=1, line=format_error(error)))

    def live(self) -> set[str]:
        """Return the names of the jobs whose processes run."""
        for name, (process, gpu) in list(self._running.items()):
            if process.poll() is not None:
                del self._running[name]
                self._slots.append(gpu)
        return set(self._running)

    def stop(self, kill: bool) -> bool:
        """Ask the jobs to save and stop (SIGTERM), or kill them; return whether they end."""
        for process, _ in self._running.values():
            process.kill() if kill else process.terminate()
        return True


def _start_process(job: Job, gpu: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(job.threads)}
    environment |= {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}
    command = [sys.executable, "-m", "diffclip.study.job", str(job.beside("job.json"))]
    with job.beside("log").open("ab") as log:
        # in a session of its own, Ctrl-C does not reach the process: the study asks it to stop
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


class Slurm:
    """Jobs of SLURM: one array for all runs that are started together. A job goes on when the study ends.

    Args:
        runs: the folder of the runs, on a disk that all nodes share; the numbers of the jobs are kept there.
        options: of the jobs, as `parse_options` returns them.
        parallel: the most jobs at a time.
    """

    pause = 5.0

    def __init__(self, runs: Path, options: dict[str, str | int], parallel: int) -> None:
        require_group("slurm", "submitit")
        # SLURM's signal before the end of a job's time; submitit reads the variable when it is imported
        os.environ["SUBMITIT_PREEMPT_SIGNAL"] = "USR1"
        import submitit

        self._runs, self._unseen = runs, set[str]()
        try:
            self._executor: Any = submitit.SlurmExecutor((runs / "slurm").absolute())
            self._executor.update_parameters(job_name="diffclip", array_parallelism=parallel, **options)
        except (RuntimeError, ValueError) as error:
            raise InputError(f"--cluster slurm: {' '.join(str(error).split())}") from None

    def free(self) -> int:
        """Return a large number: the queue is SLURM's."""
        return sys.maxsize

    def start(self, jobs: Sequence[Job]) -> None:
        """Submit an array of jobs, and keep their numbers."""
        from submitit.core.utils import FailedJobError

        files = [str(job.beside("job.json").absolute()) for job in jobs]
        try:
            array = self._executor.map_array(run_job_on_cluster, files) if files else ()
        except FailedJobError as error:
            refusal = " ".join(str(error).split())
            raise InputError(f"SLURM refuses the jobs ({refusal}): change the options of --slurm") from None
        for job, submitted in zip(jobs, array, strict=True):
            job.beside("slurm").write_text(submitted.job_id, encoding="utf-8")

    def live(self) -> set[str]:
        """Return the names of the jobs in the queue, also of earlier calls. A job that has just left the queue stays
        until the next question, as its last file may arrive later. While SLURM does not answer, no job is lost."""
        command = ["squeue", "--me", "--noheader", "--array", "--format=%i"]
        files = {f"{file.parent.name}/{file.stem}": file for file in self._runs.glob("*/*.slurm")}
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            return set(files)
        queued = set(answer.stdout.split())
        unseen = {name for name, file in files.items() if file.read_text(encoding="utf-8") not in queued}
        ended = unseen & self._unseen
        self._unseen = unseen - ended
        for name in ended:
            files[name].unlink(missing_ok=True)
        return set(files) - ended

    def stop(self, kill: bool) -> bool:
        """Leave the jobs in the queue."""
        return False


def parse_options(options: str) -> dict[str, str | int]:
    """Parse the value of `--slurm`; numbers become integers. `timeout_min` and `mem_gb` have SLURM's names then."""
    parsed: dict[str, str | int] = {}
    for option in filter(None, options.split(",")):
        key, separator, value = option.partition("=")
        if not separator:
            raise InputError(
                f"--slurm {option!r} has no value: write partition=main,gpus_per_node=1,timeout_min=240"
            )
        number = int(value) if value.isdecimal() else value
        if key == "cpus_per_task" and not isinstance(number, int):
            raise InputError(f"--slurm {option}: give a whole number of CPUs")
        names = {"timeout_min": "time", "tasks_per_node": "ntasks_per_node"}
        parsed |= {"mem": f"{value}GB"} if key == "mem_gb" else {names.get(key, key): number}
    return parsed

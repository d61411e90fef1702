"""A process that ends badly, and a first one that waits for it: real processes, without a model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from lightning.fabric.plugins.environments import LightningEnvironment

from diffclip import InputError
from diffclip.training.processes import start_others

SCRIPT = """
import os, sys, threading, time
if "LOCAL_RANK" in os.environ:
    os.write(1, f"{{os.environ['LOCAL_RANK']}} {{sys.argv[1:]}} {{'MASTER_PORT' in os.environ}}\\n".encode())
    if os.environ["LOCAL_RANK"] == "2":
        {end}
    sys.exit()
from lightning.fabric.plugins.environments import LightningEnvironment
from diffclip.training import processes
processes._PATIENCE = 0.1
processes.start_others(LightningEnvironment(), 3)
[watch] = [thread for thread in threading.enumerate() if thread.name == "watch"]
watch.join()
"""


@pytest.mark.parametrize(
    ("end", "code", "told"),
    [
        (
            "os.kill(os.getpid(), 9)",
            1,
            "diffclip: process 2 of 3 was killed by signal 9, and the others wait ",
        ),
        ("sys.exit()", 0, ""),
    ],
)
def test_a_first_process_does_not_wait_for_one_that_is_gone(
    end: str, code: int, told: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(end=end))
    done = subprocess.run([sys.executable, str(script), "--some", "option"], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert done.stderr == (told and f"{told}for it: go on with --resume\n")
    assert sorted(done.stdout.splitlines()) == [f"{rank} ['--some', 'option'] True" for rank in (1, 2)]


def test_an_interactive_session_has_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["-"])
    with pytest.raises(InputError, match="2 processes run one script"):
        start_others(LightningEnvironment(), 2)

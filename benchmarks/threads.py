"""Measure samples per second of the demo's training step on a CPU, by precision and by the way that threads wait, alone
and beside another training.

    python -m benchmarks.threads [--seconds 4]

Each number is from a process of its own, because OpenMP reads its settings when torch loads. `diffclip` sets passive
waiting (src/diffclip/threads.py), and `precision: auto` chooses the type that the processor multiplies natively.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from benchmarks.about import parser_of


def measure(precision: str, seconds: float) -> float:
    """Return samples per second, from the median step."""
    import torch

    from diffclip.training.plan import make_step
    from diffclip.training.recipe import read_recipe

    recipe = read_recipe("scenes_demo", [f"precision={precision}"])
    step = make_step(recipe, torch.device("cpu"), recipe.batch_size)
    times, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until or len(times) < 3:
        times.append(step())
    return recipe.batch_size / statistics.median(times[1:])


def start(precision: str, policy: str, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.threads", "--measure", precision, "--seconds", str(seconds)]
    environment = os.environ | {"OMP_WAIT_POLICY": policy}
    environment.pop("OMP_NUM_THREADS", None)
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--measure", metavar="PRECISION", help="print one number, in this process")
    options = parser.parse_args()
    if options.measure:
        print(measure(options.measure, options.seconds))
        return
    from diffclip.training.distributed import native_precision

    print(f"precision auto is {native_precision('auto', 'cpu')} here\n")
    print("| precision | threads wait | alone | each of two |\n| --- | --- | --- | --- |")
    for precision in ("fp32", "bf16"):
        for policy in ("ACTIVE", "PASSIVE"):
            alone = float(start(precision, policy, options.seconds).communicate()[0])
            pair = [start(precision, policy, 2 * options.seconds) for _ in range(2)]
            rates = [float(process.communicate()[0]) for process in pair]
            print(
                f"| {precision} | {policy.lower()} | {alone:.0f} | {statistics.mean(rates):.0f} |", flush=True
            )


if __name__ == "__main__":
    main()

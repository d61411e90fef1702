"""Time every block size that the fused kernels may use, on a GPU for the main shapes, and keep the quickest.

    python -m benchmarks.tuning [--seconds 110] [--output benchmarks/results]

The plans go to the user's cache folder, where the operator then finds them. Plans and times also go to
tuning_cuda.json, to update the table in diffclip/attention/kernels/plan.py by hand.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.about import about, add_common_options, parser_of, run_ahead, write_json
from benchmarks.attention import CURVE, SHAPES
from diffclip.benchmarking.attention import tune
from diffclip.benchmarking.operators import Shape, make_inputs
from diffclip.benchmarking.timing import describe_error
from diffclip.errors import InputError

MOST_CANDIDATES = 5  # of a kernel


def search(shape: Shape, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Time all candidates for `shape`, in milliseconds of the kernel's pass, and keep the best."""
    from diffclip.attention.kernels.plan import KERNELS, Blocks, table_plan

    timed: dict[str, list[dict[str, Any]]] = {kernel: [] for kernel in KERNELS}

    def record(kernel: str, blocks: Blocks, found: float | Exception) -> None:
        outcome = {"why": describe_error(found)} if isinstance(found, Exception) else {"ms": found}
        timed[kernel].append(asdict(blocks) | outcome)

    try:
        problem, choice = tune(shape, device, dtype, record)
    except InputError as error:
        return {"why": str(error), "candidates": timed}
    table = table_plan(problem, torch.cuda.get_device_properties(device).shared_memory_per_block_optin)
    return {"problem": asdict(problem), "table": asdict(table), "choice": asdict(choice), "candidates": timed}


def compile_candidates(shape: Shape, device: torch.device, dtype: torch.dtype, place: int) -> None:
    """Run the candidates at index `place` of every kernel's list together, so that they are compiled."""
    from diffclip.attention.kernels.plan import KERNELS, Plan, candidates, problem_of
    from diffclip.attention.kernels.search import time_pass

    inputs = make_inputs(shape, device, dtype, seed=0)
    problem = problem_of(inputs.q, inputs.v, shape.causal)
    shared = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    lists = [candidates(kernel, problem, shared) for kernel in KERNELS]
    plan = Plan(*(blocks[min(place, len(blocks) - 1)] for blocks in lists))
    for kernel in ("forward", "keys"):
        time_pass(kernel, plan, problem, inputs.q, inputs.v)


def main() -> None:
    parser = parser_of(__doc__)
    add_common_options(parser, seconds=110.0)
    parser.add_argument("--workers", type=int, default=1, help="processes that compile ahead")
    parser.add_argument(
        "--tokens", type=int, nargs="+", help="only shapes with so many tokens, in this order"
    )
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type != "cuda":
        print("nothing to tune: the fused kernels run on a GPU")
        return
    device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    shapes = SHAPES["cuda"] | {f"curve, N = {shape.tokens}": shape for shape in CURVE["cuda"]}
    if options.tokens:
        shapes = {key: shape for n in options.tokens for key, shape in shapes.items() if shape.tokens == n}
    result: dict[str, Any] = {"about": about("tuning", options), "shapes": {}, "not_reached": []}
    file = options.output / "tuning_cuda.json"
    deadline = time.perf_counter() + options.seconds
    dtype = torch.bfloat16
    # lengths beyond 577 use the kernels of 577
    ahead = [shape for shape in SHAPES["cuda"].values() if shape.tokens <= 577]
    jobs = [(shape, device, dtype, index) for index in range(MOST_CANDIDATES) for shape in ahead]
    run_ahead(compile_candidates, jobs, options.workers, options.seconds / 2)
    tuned = set()
    for name, shape in shapes.items():
        if (shape.tokens, shape.causal) in tuned:
            continue
        if time.perf_counter() > deadline:
            result["not_reached"].append(name)
            continue
        tuned.add((shape.tokens, shape.causal))
        try:
            outcome = search(shape, device, dtype)
        except Exception as error:  # still tune the other shapes
            outcome = {"why": describe_error(error)}
        result["shapes"][name] = outcome
        write_json(file, result)
        print(f"{name}: {outcome.get('why') or outcome['choice']}", flush=True)
    write_json(file, result)
    print(f"written to {file}", flush=True)


if __name__ == "__main__":
    main()

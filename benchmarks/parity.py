"""Compare each attention backend with the formula in float64 on the CPU: relative errors, forward and backward.

    python -m benchmarks.parity [--device cuda] [--workers 8] [--longest N] [--output benchmarks/results]

Values that a kernel does not write are NaN, because torch fills new memory. Inputs are new for every case, λ's gradient
is checked by token and as a sum, and every case runs twice. Writes parity_DEVICE.json. Exits with 1 if a backend fails,
if its two runs differ by more than a tenth of the limit, or if its error is above the limit: 1e-5 in float32 (IEEE
products), 1e-2 in half precision, where unfused backends may reach 2e-2: they round scores or sums to the inputs' type.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import tables
from benchmarks.about import about, add_common_options, largest, parser_of, run_jobs, write_json
from diffclip import differential_attention
from diffclip.attention import fused
from diffclip.attention.dispatch import BACKENDS
from diffclip.attention.heads import split_heads
from diffclip.benchmarking.timing import describe_error

# cuBLAS needs this if results must not change from run to run
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

LIMITS = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 1e-2}
REPEATED = 0.1  # share of the limit by which two runs on the same inputs may differ: the order of sums varies


@dataclass(frozen=True)
class Case:
    """A case with `heads` pairs of heads."""

    batch: int
    heads: int
    tokens: int
    size: int
    value: int
    causal: bool = False
    norm: bool = True

    def __str__(self) -> str:
        words = ["causal"] * self.causal + ["no norm"] * (not self.norm)
        return f"B{self.batch} H{self.heads} N{self.tokens} d{self.size} e{self.value} {' '.join(words)}"


def cases() -> list[Case]:
    """List the cases: head sizes, lengths, and all else that changes the path through a kernel."""
    rest = [Case(2, 2, 197, size, share * size) for size in (32, 64, 80, 128) for share in (1, 2)]
    rest += [Case(1, 1, 577, size, share * size, causal=True) for size in (32, 80, 128) for share in (1, 2)]
    for tokens, causal in (
        (7, False), (50, False), (77, True), (197, True), (257, False), (577, False), (1025, False), (1025, True),
    ):  # fmt: skip
        rest.append(Case(2 if tokens < 500 else 1, 2, tokens, 64, 128, causal))
    rest += [Case(1, 2, tokens, 64, 128, norm=False) for tokens in (77, 197, 577)]
    # the longest first: they take the most time
    return [Case(1, 1, 4097, 64, 128), Case(1, 1, 4097, 64, 64, causal=True), *rest]


def draw(case: Case, dtype: torch.dtype, seed: int) -> list[Tensor]:
    """Draw q, k, v (views of one projection if the sizes allow it), λ, the gain, and the output's gradient."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    b, h, n = case.batch, case.heads, case.tokens
    if case.value == 2 * case.size:
        q, k, v = split_heads(normal(b, n, 6 * h * case.size).to(dtype), 2 * h, h)
    else:
        q, k = (normal(b, 2 * h, n, case.size).to(dtype) for _ in range(2))
        v = normal(b, h, n, case.value).to(dtype)
    lam = 0.8 + 0.1 * normal(b, h, n)
    return [q, k, v, lam, 1 + 0.1 * normal(case.value), normal(b, h, n, case.value).to(dtype)]


def outputs(inputs: list[Tensor], case: Case, backend: str) -> dict[str, Tensor]:
    """Compute the output, and the gradients of q, k, v, λ (by token) and the gain."""
    *tensors, grad = inputs
    q, k, v, lam, gain = (x.detach().requires_grad_() for x in tensors)
    head_norm = {"norm_weight": gain, "out_scale": 0.2} if case.norm else {}
    leaves = {"q": q, "k": k, "v": v, "lambda": lam} | ({"gain": gain} if case.norm else {})
    out = differential_attention(q, k, v, lam, case.causal, backend, **head_norm)
    grads = torch.autograd.grad(out, list(leaves.values()), grad)
    return {"out": out.detach(), **dict(zip(leaves, grads, strict=True))}


def errors(got: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Return ‖got − exact‖ / ‖exact‖, and for λ's gradient also the error of its sum divided by ‖exact‖."""
    relative_errors = {}
    for name, reference in exact.items():
        difference = got[name].cpu().double() - reference
        relative_errors[name] = float(difference.norm() / reference.norm())
        if name == "lambda":
            relative_errors["lambda, summed"] = float(difference.sum().abs() / reference.norm())
    return relative_errors


def check(case: Case, dtype_name: str, device: str, seed: int) -> list[dict[str, Any]]:
    """Check a case, and return a row for each backend."""
    warnings.filterwarnings("ignore", message=".*deterministic.*")
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)  # makes torch fill new memory with NaN
    inputs = draw(case, getattr(torch, dtype_name), seed)
    exact = outputs([x.double() for x in inputs], case, "eager")
    limit = LIMITS[dtype_name]
    rows = []
    for backend in BACKENDS:
        row: dict[str, Any] = {"case": str(case), **asdict(case), "dtype": dtype_name, "backend": backend}
        try:
            moved = [x.to(device) for x in inputs]
            if backend == "triton" and (why := fused.why_not_fused(moved[0], moved[2])):
                rows.append(row | {"skipped": why})
                continue
            first, second = (outputs(moved, case, backend) for _ in range(2))
            exact_errors = errors(first, exact)
            repeat_errors = errors(second, {name: x.cpu().double() for name, x in first.items()})
            worst, moves = largest(exact_errors.values()), largest(repeat_errors.values())
            row |= {"errors": exact_errors, "worst": worst, "repeated": moves}
            row["within"] = worst <= limit  # a NaN is above every limit
            strict = backend == "triton" or dtype_name == "float32"
            row["ok"] = (row["within"] or (not strict and worst <= 2 * limit)) and moves <= REPEATED * limit
        except Exception as error:  # still check the other backends and cases
            row |= {"failed": describe_error(error), "ok": False}
        rows.append(row)
    return rows


def checked(
    jobs: list[tuple[Case, str, str, int]], workers: int, seconds: float
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each job as it ends, until time is up. Several workers are processes of their own."""
    if workers <= 1:
        deadline = time.perf_counter() + seconds
        yield from (check(*job) for job in jobs if time.perf_counter() < deadline)
        return
    for rows in run_jobs(check, jobs, workers, seconds):
        if isinstance(rows, BaseException):  # its process died: still check the other cases
            rows = [
                {"case": "a process", "dtype": "", "backend": "", "failed": describe_error(rows), "ok": False}
            ]
        yield rows


def main() -> None:
    parser = parser_of(__doc__)
    add_common_options(parser, seconds=90.0)
    parser.add_argument(
        "--workers", type=int, default=1, help="processes: compiling the kernels is most of it"
    )
    parser.add_argument("--longest", type=int, default=None, help="leave out cases with more tokens")
    parser.add_argument(
        "--only", help="the case whose name has this in it, in bfloat16 alone, as for a profiler"
    )
    options = parser.parse_args()
    selected = [case for case in cases() if options.longest is None or case.tokens <= options.longest]
    types = list(LIMITS)
    if options.only:
        selected, types = [case for case in selected if options.only in str(case)], ["bfloat16"]
    jobs = [(case, dtype, options.device, seed) for seed, case in enumerate(selected) for dtype in types]
    rows: list[dict[str, Any]] = []
    done = 0
    file = options.output / f"parity_{torch.device(options.device).type}.json"
    result: dict[str, Any] = {"about": about("parity", options), "limits": LIMITS, "rows": rows}
    for new_rows in checked(jobs, options.workers, options.seconds):
        done += 1
        rows += new_rows
        for row in new_rows:
            show(row)
        # every time, so that a stopped run keeps its results
        write_json(file, result | {"not_reached": len(jobs) - done})
    failed = [row for row in rows if not row.get("ok", True)]
    ran = [row for row in rows if "skipped" not in row]
    print("\n".join(tables.parity_table(result)))
    if done < len(jobs):
        print(f"no time was left for {len(jobs) - done} of {len(jobs)} cases")
    print(f"{len(ran) - len(failed)} of {len(ran)} as they must be; written to {file}")
    sys.exit(int(bool(failed) or not ran))


def show(row: dict[str, Any]) -> None:
    """Print a row, unless it was skipped."""
    if "skipped" in row:
        return
    head = f"{row['case']:38}{row['dtype']:10}{row['backend']:8}"
    if "failed" in row:
        print(f"{head} FAILED: {row['failed']}", flush=True)
        return
    details = " ".join(f"{name} {error:.0e}" for name, error in row["errors"].items())
    verdict = "" if row["within"] else "  above the limit"
    verdict += "" if row["ok"] else "  NOT AS IT MUST BE"
    print(f"{head} worst {row['worst']:.1e} repeated {row['repeated']:.0e} ({details}){verdict}", flush=True)


if __name__ == "__main__":
    main()

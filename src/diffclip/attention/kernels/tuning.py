"""The plan of a call: the one that a search has found on this GPU, else the table's. Found plans are kept in a file.

The JSON file is in the user's cache folder, named by GPU and Triton version. Without it the table's plans are used.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import torch
import triton
from torch import Tensor

from diffclip.attention.kernels import KERNELS_VERSION
from diffclip.attention.kernels.plan import KERNELS, Blocks, Plan, Problem, candidates, problem_of, table_plan
from diffclip.files import cache_folder, write_text

_plans: dict[tuple[Problem, torch.device], Plan] = {}


def plan_for(q: Tensor, v: Tensor, causal: bool) -> Plan:
    """Return the measured plan for q [B, 2·H, N, d] and v [B, H, N, e] if there is one, else the table's."""
    problem = problem_of(q, v, causal)
    if not q.is_cuda:  # the interpreter has no limits
        return table_plan(problem)
    key = (problem, q.device)
    if key not in _plans:  # once per process, because reading files in every forward pass is slow
        shared = torch.cuda.get_device_properties(q.device).shared_memory_per_block_optin
        _plans[key] = cached(problem, q.device) or table_plan(problem, shared)
    return _plans[key]


def cached(problem: Problem, device: torch.device) -> Plan | None:
    """Return the plan that an earlier search found; None if there is none, or if it is no longer a candidate."""
    plan = read_plans(plan_file(device)).get(_key(problem))
    shared = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    known = plan and all(getattr(plan, kernel) in candidates(kernel, problem, shared) for kernel in KERNELS)
    return plan if known else None


def plan_file(device: torch.device) -> Path:
    """Return the path of the file with a GPU's measured plans."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", torch.cuda.get_device_name(device)).strip("-")
    return cache_folder() / "kernels" / f"v{KERNELS_VERSION}_{name}_triton-{triton.__version__}.json"


def keep(problem: Problem, plan: Plan, file: Path) -> None:
    """Add a plan to `file`; raise `InputError` if the file cannot be written."""
    plans = {key: asdict(old) for key, old in read_plans(file).items()} | {_key(problem): asdict(plan)}
    write_text(file, json.dumps(plans, indent=1))


def read_plans(file: Path) -> dict[str, Plan]:
    """Return the plans in `file`; none if it is missing or damaged."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {
            key: Plan(**{kernel: Blocks(**blocks) for kernel, blocks in plan.items()})
            for key, plan in found.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _key(problem: Problem) -> str:
    return " ".join(f"{name}={value}" for name, value in asdict(problem).items())

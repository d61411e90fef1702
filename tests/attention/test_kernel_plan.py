"""Block sizes: plans fit shared memory, every choice gives the same numbers, and measured plans go to a file."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from parity import DEVICE, assert_near, draw, exact, poisoned
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from diffclip.attention.kernels import launch, search, tuning
from diffclip.attention.kernels import plan as plans
from diffclip.attention.kernels.plan import KERNELS, Blocks, Plan, Problem, candidates, table_plan
from diffclip.errors import InputError

KIB = 1024


@pytest.mark.parametrize("limit", [99 * KIB, 163 * KIB, 227 * KIB])
def test_every_plan_fits_shared_memory(limit: int) -> None:
    sizes = (16, 32, 64, 80, 128), (1, 2)
    for tokens, size, times, width in product((1, 77, 256, 257, 4097), *sizes, (2, 4)):
        problem = Problem(tokens, size, times * size, width, False)
        plan = table_plan(problem, limit)
        for kernel in KERNELS:
            assert problem.shared(kernel, getattr(plan, kernel)) <= limit, (problem, kernel)


def test_plans_are_looked_up_once_per_process(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[object] = []
    monkeypatch.setattr(tuning, "cached", lambda *arguments: lookups.append(arguments))
    monkeypatch.setattr(tuning, "_plans", {})
    monkeypatch.setattr(plans, "_properties", torch.cuda.get_device_properties)
    with FakeTensorMode():
        q, v = (torch.empty(1, heads, 8, 16, device="cuda:0") for heads in (2, 1))
        choices = [tuning.plan_for(q, v, False) for _ in range(3)]
    assert len(lookups) == 1
    assert choices == [table_plan(plans.problem_of(q, v, False))] * 3


def all_candidates(kernel: str) -> list[Blocks]:
    """List candidates of every type, width and length. All give the same numbers, so one input serves for all."""
    problems = [
        Problem(tokens, 16, value, width, False)
        for tokens, value, width in product((150, 300), (32, 256), (2, 4))
    ]
    all_blocks = [blocks for problem in problems for blocks in candidates(kernel, problem)]
    return sorted({(b.rows, b.columns): b for b in all_blocks}.values(), key=lambda b: (b.rows, b.columns))


def passes(tokens: int, plan: Plan, causal: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Compute one pair of heads with the kernels under `plan`, and with the formula."""
    inputs = draw(1, 1, tokens, 16, 32)
    q, k, v, lam, gain = (x if x is None else x.detach() for x in list(vars(inputs).values())[:5])
    with poisoned():
        out = torch.empty_like(v)
        saved = launch.forward(q, k, v, lam, gain, causal, 1e-5, 0.2, True, out, plan)
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        dlam, dgain = launch.backward(
            inputs.grad, q, k, v, lam, gain, out, *saved, causal, 1e-5, 0.2, dq, dk, dv, plan
        )
    return {"out": out, "q": dq, "k": dk, "v": dv, "lam": dlam, "gain": dgain}, exact(inputs, causal, 0.2)


SAFE = Blocks(32, 32, 4, 1) if DEVICE == "cuda" else Blocks(128, 128, 4, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_choice_of_blocks_gives_the_same_numbers(kernel: str, causal: bool) -> None:
    for blocks in all_candidates(kernel):
        tokens = max(blocks.rows, blocks.columns) + 5  # one block and 5 tokens more
        if DEVICE == "cuda" and Problem(tokens, 16, 32, 4, causal).shared(kernel, blocks) > 99 * KIB:
            continue
        plan = Plan(**{name: blocks if name == kernel else SAFE for name in KERNELS})
        actual, expected = passes(tokens, plan, causal)
        assert_near(actual, expected, 1e-5)


PROBLEM = Problem(197, 64, 128, 2, False)
PLAN = Plan(Blocks(128, 0, 8, 1), Blocks(64, 32, 4, 2), Blocks(16, 64, 4, 3))
X = SimpleNamespace(device=torch.device("cuda"))


@pytest.fixture
def file(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the plan file of a GPU that this machine does not have."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200 (80/GB)")
    properties = SimpleNamespace(shared_memory_per_block_optin=232_448)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return tuning.plan_file(X.device)


def test_a_kept_plan_is_found_again_for_its_own_problem_only(file: Path, cache_home: Path) -> None:
    assert file.parent == cache_home / "diffclip" / "kernels"
    assert "_NVIDIA-H200-80-GB_triton-" in file.name
    assert tuning.cached(PROBLEM, X.device) is None
    text_problem, better_plan = Problem(77, 64, 128, 2, True), replace(PLAN, forward=Blocks(64, 32, 4, 3))
    for problem, plan in ((PROBLEM, PLAN), (text_problem, PLAN), (PROBLEM, better_plan)):
        tuning.keep(problem, plan, file)
        assert tuning.cached(problem, X.device) == plan
    assert tuning.cached(text_problem, X.device) == PLAN
    assert len(json.loads(file.read_text())) == 2
    for change in ({"tokens": 196}, {"value": 64}, {"bytes": 4}, {"causal": True}):
        assert tuning.cached(replace(PROBLEM, **change), X.device) is None
    # a kept plan that is not a candidate any more is ignored
    tuning.keep(PROBLEM, replace(PLAN, keys=Blocks(48, 64, 4, 2)), file)
    assert tuning.cached(PROBLEM, X.device) is None


@pytest.mark.usefixtures("file")
def test_search_returns_none_if_every_candidate_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> float:
        raise RuntimeError("out of resource")

    monkeypatch.setattr(search, "time_pass", fail)
    assert search.search(PROBLEM, X, X) is None


@pytest.mark.parametrize("damage", [b"{", b'{"a": {"sideways": {"rows": 1}}}', b"\xff\xfe\x00"])
def test_a_damaged_plan_file_is_ignored_and_rewritten(file: Path, damage: bytes) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(damage)
    assert tuning.cached(PROBLEM, X.device) is None
    tuning.keep(PROBLEM, PLAN, file)
    assert tuning.cached(PROBLEM, X.device) == PLAN


def test_an_unwritable_plan_folder_raises_input_error(file: Path, cache_home: Path) -> None:
    (cache_home / "diffclip").write_text("a file where the folder should be")
    with pytest.raises(InputError, match="diffclip"):
        tuning.keep(PROBLEM, PLAN, file)
    assert tuning.cached(PROBLEM, X.device) is None

"""The kernels compiled for GPUs that need not be there: nothing is refused, and shared memory suffices."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or importlib.util.find_spec("triton.backends.nvidia") is None,
    reason="Triton has no CUDA backend here",
)

# what a launch would hand to each kernel is recorded, and compiled as Triton's launcher would have it compiled
PROGRAM = """
import json, sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from diffclip.attention.kernels import launch
from diffclip.attention.kernels.plan import Problem, table_plan

NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
OPTIONS = ("num_warps", "num_stages")

class Recorder:
    def __init__(self, kernel, calls):
        self.kernel, self.calls = kernel, calls
    def __getitem__(self, grid):
        def call(*arguments, **named):
            given = dict(zip(self.kernel.arg_names, arguments)) | named
            self.calls.append((self.kernel, given))
        return call

def compiled(kernel, given, capability):
    options = {name: given.pop(name) for name in OPTIONS}
    signature, constants, hints = {}, {}, {}
    assert set(given) == set(kernel.arg_names), set(given) ^ set(kernel.arg_names)
    for i, parameter in enumerate(kernel.params):
        value = given[parameter.name]
        if parameter.is_constexpr or (type(value) is int and value == 1):
            signature[parameter.name], constants[(i,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name], hints[(i,)] = "*" + NAMES[value.dtype], [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
        else:
            signature[parameter.name] = "i32"
            if value % 16 == 0:
                hints[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=hints)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)

KERNELS = [launch.forward_short, launch.forward_long, launch.backward_rows, launch.backward_keys]

for tokens, d, e, dtype, causal, capability, limit in json.loads(sys.argv[1]):
    calls = []
    for kernel in KERNELS:
        setattr(launch, kernel.__name__, Recorder(kernel, calls))
    dtype = getattr(torch, dtype)
    shapes = (12, d), (12, d), (6, e)
    qkv = [torch.empty(2, tokens, *shape, dtype=dtype, device="meta").transpose(1, 2) for shape in shapes]
    lam = torch.empty((), device="meta").expand(2, 6, tokens)
    gain = torch.empty(e, device="meta")
    out, *into = (torch.empty_like(x) for x in (qkv[2], *qkv))
    plan = table_plan(Problem(tokens, d, e, dtype.itemsize, causal), limit)
    kept = launch.forward(*qkv, lam, gain, causal, 1e-5, 0.2, True, out, plan)
    launch.backward(out, *qkv, lam, gain, out, *kept, causal, 1e-5, 0.2, *into, plan)
    for kernel, given in calls:
        print(json.dumps([kernel.__name__, compiled(kernel, given, capability).metadata.shared]))
"""
SHARED = {80: 163 * 1024, 90: 227 * 1024}
PROBLEMS = [
    (197, 64, 128, "bfloat16", False, 90),
    (77, 64, 128, "bfloat16", True, 90),
    (4097, 64, 128, "bfloat16", False, 90),
    (197, 80, 160, "bfloat16", False, 90),
    (50, 32, 32, "float16", False, 90),
    (77, 64, 128, "float32", True, 90),
    (197, 64, 128, "bfloat16", False, 80),
]


@pytest.mark.slow(minutes=1)
def test_every_kernel_compiles_and_fits_shared_memory(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([(*each, SHARED[each[-1]]) for each in PROBLEMS])],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    compiled = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(compiled) == 3 * len(PROBLEMS)
    assert {name for name, _ in compiled} == {
        "forward_short",
        "forward_long",
        "backward_rows",
        "backward_keys",
    }
    for i, (name, shared) in enumerate(compiled):
        problem = PROBLEMS[i // 3]
        assert 0 < shared <= SHARED[problem[-1]], (name, problem)

"""Compile the fused kernels for a GPU that need not be there, and report registers, spills and shared memory.

    python -m benchmarks.compiled [--output benchmarks/results]

Every kernel is compiled for the main shapes and sm_90 (H100, H200) as Triton's launcher does it. The results go to
compiled_sm90.json, with Triton's version. `loop` is the number of instructions in the longest loop, `wgmma` the
number of matrix instructions, `waits` the numbers of copies that loops leave in flight when they wait.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.about import parser_of, write_json
from diffclip.attention.kernels import launch
from diffclip.attention.kernels.plan import KERNELS, Plan, Problem, table_plan

PROBLEMS = [  # and whether they are causal
    (Problem(197, 64, 128, 2), False),
    (Problem(77, 64, 128, 2), True),
    (Problem(257, 64, 128, 2), False),
    (Problem(4097, 64, 128, 2), False),
    (Problem(257, 80, 160, 2), False),
    (Problem(197, 64, 128, 4), False),
]
_FUNCTIONS = ("forward_short", "forward_long", "backward_rows", "backward_keys")
_TYPES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class _Recorder:
    """Replace a kernel in `launch`, and keep the arguments of its calls."""

    def __init__(self, kernel: Any, calls: dict[str, tuple[Any, dict[str, Any]]]) -> None:
        self.kernel, self.calls = kernel, calls

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda **named: self.calls.__setitem__(self.kernel.__name__, (self.kernel, named))


def launches(problem: Problem, causal: bool, plan: Plan) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return kernel and arguments of each launch of `plan`, by the kernel's name in a plan, without running it."""
    calls: dict[str, tuple[Any, dict[str, Any]]] = {}
    kernels = {name: getattr(launch, name) for name in _FUNCTIONS}
    dtype = torch.bfloat16 if problem.bytes == 2 else torch.float32
    shapes = (12, problem.size), (12, problem.size), (6, problem.value)
    q, k, v = (torch.empty(2, problem.tokens, *s, dtype=dtype, device="meta").transpose(1, 2) for s in shapes)
    lam = torch.empty((), device="meta").expand(2, 6, problem.tokens)
    gain = torch.empty(problem.value, device="meta")
    numbers = (causal, 1e-5, 0.2)
    try:
        for name, kernel in kernels.items():
            setattr(launch, name, _Recorder(kernel, calls))
        saved = launch.forward(q, k, v, lam, gain, *numbers, True, v, plan)
        launch.backward(v, q, k, v, lam, gain, v, *saved, *numbers, q, k, v, plan)
    finally:
        for name, kernel in kernels.items():
            setattr(launch, name, kernel)
    return {next(part for part in KERNELS if part in name): call for name, call in calls.items()}


def compile_for(capability: int, kernel: Any, given: dict[str, Any]) -> Any:
    """Compile `kernel` for sm_`capability` and arguments like `given`, as Triton's launcher does it."""
    options = {name: given.pop(name) for name in ("num_warps", "num_stages", "enable_fp_fusion")}
    assert set(given) == set(kernel.arg_names), set(given) ^ set(kernel.arg_names)
    signature: dict[str, str] = {}
    constants, hints = {}, {}
    for index, parameter in enumerate(kernel.params):
        value = given[parameter.name]
        special = not parameter.do_not_specialize
        if parameter.is_constexpr or (type(value) is int and value == 1 and special):
            signature[parameter.name], constants[(index,)] = "constexpr", value
            continue
        tensor = isinstance(value, torch.Tensor)
        signature[parameter.name] = (
            f"*{_TYPES[value.dtype]}" if tensor else "fp32" if isinstance(value, float) else "i32"
        )
        if special and (tensor or (type(value) is int and value % 16 == 0)):
            hints[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=hints)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def report(compiled: Any) -> dict[str, Any]:
    """Return registers, stack (spilled) bytes, shared memory, `wgmma` and `waits` of the PTX, and the SASS's `loop`."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _run("cuobjdump", "--dump-resource-usage", file.name)
        code = _run("nvdisasm", "-c", file.name)
    counts = {name: int(value) for name, value in re.findall(r"(REG|STACK):(\d+)", usage)}
    offsets = {
        label: int(offset, 16) for label, offset in re.findall(r"\.(L_x_\d+):\s*/\*([0-9a-f]{4,})\*/", code)
    }
    jumps = re.findall(r"/\*([0-9a-f]{4,})\*/[^\n]*BRA[^\n]*\.(L_x_\d+)\)", code)
    loops = [
        (int(offset, 16) - offsets[label]) // 16
        for offset, label in jumps
        if offsets.get(label, 1 << 60) < int(offset, 16)
    ]
    return {
        "registers": counts["REG"],
        "stack_bytes": counts["STACK"],
        "shared_bytes": compiled.metadata.shared,
        "wgmma": compiled.asm["ptx"].count("wgmma.mma_async"),
        "waits": sorted(
            {int(n) for n in re.findall(r"cp.async.wait_group\s+(0x\w+|\d+)", compiled.asm["ptx"])}
        ),
        "loop": max(loops, default=0),
    }


def _run(tool: str, *arguments: str) -> str:
    return subprocess.run([_TOOLS / tool, *arguments], capture_output=True, text=True, check=True).stdout


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    rows = []
    for problem, causal in PROBLEMS:
        print(f"\n{problem}{', causal' if causal else ''}")
        plan = table_plan(problem)
        for kernel, call in launches(problem, causal, plan).items():
            result, blocks = report(compile_for(90, *call)), asdict(getattr(plan, kernel))
            described = {"problem": asdict(problem) | {"causal": causal}, "kernel": kernel, "blocks": blocks}
            rows.append(described | result)
            print(f"  {kernel:8}{'×'.join(map(str, blocks.values())):14}{result}", flush=True)
    about = {"triton": triton.__version__, "target": "sm_90"}
    write_json(options.output / "compiled_sm90.json", {"about": about, "rows": rows})


if __name__ == "__main__":
    main()

"""Compile the kernels for GPUs that may be absent: from capability 8.0 they fit shared memory, and loops prefetch."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or importlib.util.find_spec("triton.backends.nvidia") is None,
    reason="Triton has no CUDA backend here",
)

ROOT = Path(__file__).parents[2]
# the Triton of torch 2.11, which `make test-triton36` installs into a separate folder
OLDER = Path(os.environ.get("DIFFCLIP_TRITON36") or ROOT / ".venv" / "triton36")
PROGRAM = """
import json, sys
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import create_function_from_signature
from benchmarks.compiled import compile_for, launches
from diffclip.attention.kernels.plan import Problem, table_plan

backend = make_backend(GPUTarget("cuda", 90, 32))
for *problem, causal, capability, limit in json.loads(sys.argv[1]):
    problem = Problem(*problem)
    for name, (kernel, given) in launches(problem, causal, table_plan(problem, limit)).items():
        key_of = create_function_from_signature(kernel.signature, kernel.params, backend)
        sizes = {"tokens", "split"} & set(given)
        keys = {str(key_of(**given | dict.fromkeys(sizes, size))[1]) for size in (1, 16, 197)}
        compiled = compile_for(capability, kernel, given)
        waits = [line.split()[-1].strip(";") for line in compiled.asm["ptx"].splitlines() if "wait_group" in line]
        row = {"kernel": kernel.__name__, "shared": compiled.metadata.shared, "waits": [*map(int, waits)]}
        print(json.dumps(row | {"keys": len(keys)}))
"""
# bytes of shared memory per program, by compute capability
SHARED = {80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024, 120: 99 * 1024}
SHORT, TEXT, LONG = (197, 64, 128, 2, False), (77, 64, 128, 2, True), (4097, 64, 128, 2, False)
PROBLEMS = [
    # 8.6 and 12.0 have equally much memory and therefore the same plan for each problem
    *((*SHORT, capability) for capability in (86, 90)),
    *((*LONG, capability) for capability in (90, 120)),
    (197, 80, 160, 2, False, 80),
    (77, 64, 128, 4, True, 80),
    (*TEXT, 90),
]


def compiled(
    problems: list[tuple[Any, ...]], cache: Path, first: Path | None = None
) -> list[list[dict[str, Any]]]:
    """Compile the three kernels of each problem in a process whose imports search the folder `first` first."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = [*([str(first)] if first else []), str(ROOT / "src"), str(ROOT)]
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([(*case, SHARED[case[-1]]) for case in problems])],
        env=environment | {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    rows = [json.loads(line) for line in process.stdout.splitlines()]
    assert len(rows) == 3 * len(problems)
    return [rows[i : i + 3] for i in range(0, len(rows), 3)]


def check(problems: list[tuple[Any, ...]], found: list[list[dict[str, Any]]]) -> None:
    for problem, rows in zip(problems, found, strict=True):
        for row in rows:
            assert row["keys"] == 1, f"{row['kernel']} would compile again for a last batch of another size"
            assert 0 < row["shared"] <= SHARED[problem[-1]], (problem, row)
            # on a GPU with enough memory each loop waits for copies that were started one iteration earlier
            looped = row["kernel"] != "forward_short" and problem[:5] in (SHORT, LONG)
            if looped and problem[-1] == 90:
                assert max(row["waits"]) >= 2, (problem, row)


@pytest.mark.slow(minutes=2)
def test_every_kernel_compiles_and_fits_shared_memory(tmp_path: Path) -> None:
    check(PROBLEMS, compiled(PROBLEMS, tmp_path))


@pytest.mark.slow(minutes=1)
@pytest.mark.skipif(not OLDER.is_dir(), reason="Triton 3.6 is not installed beside: make test-triton36")
def test_the_main_shapes_compile_with_triton_3_6_too(tmp_path: Path) -> None:
    problems = [case for case in PROBLEMS if case[-1] == 90 and case[:5] in (SHORT, TEXT, LONG)]
    check(problems, compiled(problems, tmp_path, OLDER))

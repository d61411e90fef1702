"""`experiments/without_bf16`: products of bfloat16 numbers, computed in float32."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "experiments" / "without_bf16"
PROGRAM = """
import sys, torch
from torch.nn.functional import conv2d
factors, results = torch.load(sys.argv[1]), {}
for name, (a, b, bias) in factors.items():
    a, b = a.requires_grad_(), b.requires_grad_()
    if name == "conv":
        out = conv2d(a, b, bias, stride=16)
    elif bias is None:
        out = a @ b
    else:
        out = torch.addmm(bias, a, b)
    out.sum().backward()
    results[name] = [out.detach(), a.grad, b.grad]
torch.save(results, sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
def test_products_are_those_of_float64_rounded_once(tmp_path):
    lib = Path(torch.__file__).parent
    subprocess.run(
        [
            *("g++", "-O1", "-std=c++20", "-fPIC", "-shared", f"-I{lib}/include", f"-L{lib}/lib"),
            *(
                f"-I{lib}/include/torch/csrc/api/include",
                f"-Wl,-rpath,{lib}/lib",
                str(FOLDER / "products.cpp"),
            ),
            *("-lc10", "-ltorch_cpu", "-o", str(tmp_path / "products.so")),
        ],
        check=True,
    )
    torch.manual_seed(0)
    factors = {
        "long rows": (torch.randn(1100, 96), torch.randn(96, 160), None),
        "with a bias": (torch.randn(1100, 96), torch.randn(96, 160), torch.randn(160)),
        "a long sum": (torch.randn(96, 1100), torch.randn(1100, 160), None),
        "a long sum with a bias": (torch.randn(96, 1100), torch.randn(1100, 160), torch.randn(160)),
        "batched": (torch.randn(12, 26, 32), torch.randn(12, 32, 26), None),
        "conv": (torch.randn(4, 3, 80, 80), torch.randn(48, 3, 16, 16), torch.randn(48)),
    }
    factors = {
        name: tuple(x if x is None else x.bfloat16() for x in three) for name, three in factors.items()
    }
    exact = {name: tuple(x if x is None else x.double() for x in three) for name, three in factors.items()}
    results = []
    for name, given, products in (("bf16", factors, True), ("exact", exact, True), ("plain", exact, False)):
        torch.save(given, tmp_path / name)
        variables = {"PRODUCTS": str(tmp_path / "products.so"), "PYTHONPATH": str(FOLDER)} if products else {}
        command = [sys.executable, "-c", PROGRAM, tmp_path / name, tmp_path / f"{name}.out"]
        subprocess.run(command, check=True, env=os.environ | variables)
        results.append(torch.load(tmp_path / f"{name}.out"))
    ours, float64, plain = results
    for name in factors:
        for mine, right, same in zip(ours[name], float64[name], plain[name], strict=True):
            assert torch.equal(right, same)  # products of other types are torch's own
            assert mine.dtype == torch.bfloat16
            torch.testing.assert_close(mine.double(), right, rtol=2**-7, atol=1e-3)
            assert (mine == right.bfloat16()).double().mean() > 0.995, name

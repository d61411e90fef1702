"""If the fused kernels cannot run, the results are those of the formula, and one warning gives the reason."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from parity import draw
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from diffclip import differential_attention, errors
from diffclip.attention import dispatch, fused
from diffclip.attention.differential import DifferentialAttention

FALLBACK = 'attention backend "triton" is not used, "eager" takes its place'


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_said", set())


@contextmanager
def warned() -> Iterator[list[str]]:
    """Collect the warnings of the block."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    messages += [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("d", "e", "dtype", "reason"),
    [
        (8, 16, torch.float64, "the inputs are torch.float64"),
        (64, 272, torch.float32, "head sizes 64 and 272 are above 128 and 256"),
    ],
)
def test_unsupported_inputs_fall_back_to_eager_with_one_warning(
    d: int, e: int, dtype: torch.dtype, reason: str
) -> None:
    q, k, v = draw(2, 2, 11, d, e, dtype).qkv

    with warned() as messages:
        outputs = [differential_attention(q, k, v, 0.7, backend="triton") for _ in range(3)]
    assert messages == [f"{FALLBACK}: {reason}"]
    expected = differential_attention(q, k, v, 0.7, backend="eager")
    assert all(torch.equal(output, expected) for output in outputs)


def test_triton_falls_back_to_eager_without_gpu_and_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_INTERPRETED", False)
    q, k, v = draw(2, 2, 11, 8, 16, device="cpu").qkv
    layer, x = DifferentialAttention(32, 4), torch.randn(1, 6, 32)

    def compute(backend: str) -> tuple[Tensor, ...]:
        layer.backend = backend
        maps = layer.attend_through_maps(x, causal=True)[1].combined
        return differential_attention(q, k, v, 0.7, backend=backend), layer(x), maps

    with warned() as messages:
        outputs = [compute("triton") for _ in range(2)][1]
    assert all(map(torch.equal, outputs, compute("eager")))
    assert messages == [
        'attention backend "triton" never makes the maps: they come from "eager"',
        f"{FALLBACK}: the inputs are on cpu, and the kernels run on a GPU",
    ]


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tensor]:
    """Create a fake tensor on a GPU, for a machine without a GPU."""
    monkeypatch.setattr(fused, "_INSTALLED", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    fused._tried.cache_clear()
    with FakeTensorMode():
        yield torch.empty(1, 2, 8, 16, device="cuda:0", dtype=torch.bfloat16)
    fused._tried.cache_clear()


def test_auto_uses_the_kernels_once_they_are_measured_or_warns_once_if_the_first_launch_fails(
    a_gpu: Tensor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launches: list[torch.device] = []
    monkeypatch.setattr(fused, "_launch", launches.append)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "A GPU")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shape = (1, 2, 8, 16)
    resolved = dispatch.resolve_backend(shape, True, a_gpu.device, a_gpu.dtype)
    message = "the fused kernels have not been measured on A GPU in bfloat16: run diffclip bench"
    assert resolved == ("sdpa", message)
    fused.keep_verdict("A GPU", "bfloat16", None)
    fused.keep_verdict("A GPU", "float32", "the fused kernels take 1.20 times the time of sdpa")
    wide = a_gpu.float()
    assert dispatch.choose_backend("auto", wide, wide[:, :1]) == "sdpa"
    for backend in ("sdpa", "eager"):
        assert dispatch.choose_backend(backend, a_gpu, a_gpu[:, :1]) == backend
    assert launches == []  # none of these calls needs the kernels
    assert [dispatch.choose_backend("auto", a_gpu, a_gpu[:, :1]) for _ in range(3)] == ["triton"] * 3
    assert launches == [torch.device("cuda:0")]
    assert dispatch.resolve_backend(shape, True, a_gpu.device, a_gpu.dtype)[0] == "triton"
    slower = "the fused kernels take 1.20 times the time of sdpa"
    assert dispatch.resolve_backend(shape, True, a_gpu.device, torch.float32) == ("sdpa", slower)
    assert dispatch.choose_backend("triton", wide, wide[:, :1]) == "triton"
    fused._tried.cache_clear()

    def fail(device: torch.device) -> None:
        raise RuntimeError("Failed to find C compiler.\nInstall one")

    monkeypatch.setattr(fused, "_launch", fail)
    with warned() as messages:
        backends = [dispatch.choose_backend("auto", a_gpu, a_gpu[:, :1]) for _ in range(3)]
    assert backends == ["sdpa"] * 3
    assert messages == [
        "the fused attention kernels do not run here: RuntimeError: Failed to find C compiler."
    ]
    # an old GPU is refused without a launch
    fused._tried.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    assert dispatch.choose_backend("auto", a_gpu, a_gpu[:, :1]) == "sdpa"
    assert fused.why_not_fused(a_gpu, a_gpu) == "the GPU has compute capability 7.5, and the kernels need 8.0"

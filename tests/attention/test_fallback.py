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
from diffclip.attention import dispatch, eager, fused
from diffclip.attention.differential import DifferentialAttention
from diffclip.attention.softmax import SoftmaxAttention

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
    ("d", "e", "dtype", "dropout_p", "reason"),
    [
        (8, 16, torch.float64, 0.0, "the inputs are torch.float64"),
        (64, 272, torch.float32, 0.0, "head sizes 64 and 272 are above 128 and 256"),
        (8, 16, torch.float32, 0.3, "attention dropout needs the maps"),
    ],
)
def test_unsupported_inputs_fall_back_to_eager_with_one_warning(
    d: int, e: int, dtype: torch.dtype, dropout_p: float, reason: str
) -> None:
    q, k, v = draw(2, 2, 11, d, e, dtype).qkv

    def attend(backend: str) -> Tensor:
        torch.manual_seed(3)
        return differential_attention(q, k, v, 0.7, backend=backend, dropout_p=dropout_p)

    with warned() as messages:
        outputs = [attend("triton") for _ in range(3)]
    assert messages == [f"{FALLBACK}: {reason}"]
    assert all(torch.equal(output, attend("eager")) for output in outputs)


@pytest.mark.parametrize("backend", ["auto", "sdpa"])
def test_auto_and_sdpa_apply_dropout_without_a_warning(backend: str) -> None:
    q, k, v = draw(2, 2, 11, 8, 16, device="cpu").qkv
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.manual_seed(3)
        out = differential_attention(q, k, v, 0.7, backend=backend, dropout_p=0.3)
    torch.manual_seed(3)
    torch.testing.assert_close(out, eager.differential(q, k, v, torch.tensor(0.7), False, 0.3))


def test_dropout_drops_its_share_of_each_map_and_scales_the_rest() -> None:
    # V is the identity, so the output is the map. Scores are equal and λ is 0, so entries are 0 or (1/N)/(1 − p)
    tokens = 100
    q, v = torch.zeros(2, 4, tokens, 8), torch.eye(tokens).expand(2, 2, tokens, tokens)
    torch.manual_seed(0)
    out = differential_attention(q, q, v, 0.0, dropout_p=0.25)
    dropped = out == 0
    torch.testing.assert_close(out[~dropped], torch.full_like(out[~dropped], 0.01 / 0.75))
    # 40 000 draws: five standard deviations are 0.011
    assert abs(dropped.float().mean() - 0.25) < 0.011
    second = differential_attention(q, q, v, 1.0, dropout_p=0.25)
    # each map has its own dropout: the difference is not 0 if exactly one of the two entries was dropped
    assert abs((second != 0).float().mean() - 2 * 0.25 * 0.75) < 0.013


@pytest.mark.parametrize("kind", [DifferentialAttention, SoftmaxAttention])
def test_layers_apply_dropout_in_training_only(kind: type) -> None:
    torch.manual_seed(0)
    layer, plain = kind(32, 4, attn_drop=0.5), kind(32, 4)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(2, 9, 32)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), plain(x))


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
    assert dispatch.choose_backend("auto", wide, wide[:, :1], 0.0) == "sdpa"
    for backend in ("sdpa", "eager"):
        assert dispatch.choose_backend(backend, a_gpu, a_gpu[:, :1], 0.0) == backend
    assert launches == []  # none of these calls needs the kernels
    assert [dispatch.choose_backend("auto", a_gpu, a_gpu[:, :1], 0.0) for _ in range(3)] == ["triton"] * 3
    assert launches == [torch.device("cuda:0")]
    assert dispatch.resolve_backend(shape, True, a_gpu.device, a_gpu.dtype)[0] == "triton"
    slower = "the fused kernels take 1.20 times the time of sdpa"
    assert dispatch.resolve_backend(shape, True, a_gpu.device, torch.float32) == ("sdpa", slower)
    assert dispatch.choose_backend("triton", wide, wide[:, :1], 0.0) == "triton"
    fused._tried.cache_clear()

    def fail(device: torch.device) -> None:
        raise RuntimeError("Failed to find C compiler.\nInstall one")

    monkeypatch.setattr(fused, "_launch", fail)
    with warned() as messages:
        backends = [dispatch.choose_backend("auto", a_gpu, a_gpu[:, :1], 0.0) for _ in range(3)]
    assert backends == ["sdpa"] * 3
    assert messages == [
        "the fused attention kernels do not run here: RuntimeError: Failed to find C compiler."
    ]
    # an old GPU is refused without a launch
    fused._tried.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    assert dispatch.choose_backend("auto", a_gpu, a_gpu[:, :1], 0.0) == "sdpa"
    assert fused.why_not_fused(a_gpu, a_gpu) == "the GPU has compute capability 7.5, and the kernels need 8.0"

"""Loss and gradients of micro-batches and of two real processes, compared with the whole batch in one process."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import gradients
import pytest
import torch
from torch.distributed.elastic.utils.distributed import get_free_port
from zeroed_images import zero_images

from diffclip import InputError
from diffclip.training.accumulate import backward_in_parts, cut_texts
from diffclip.training.distributed import clip_gradients, make_fabric, native_precision
from diffclip.training.launch import Hardware, launched_sizes
from diffclip.training.losses import make_criterion


@pytest.fixture(scope="module")
def broken(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A validation shard in which every second image is broken."""
    [shard] = (scenes / "val").glob("*.tar")
    target = tmp_path_factory.mktemp("broken") / "0.tar"
    zero_images(shard, target, range(1, 12, 2))
    return target


@pytest.fixture(scope="module")
def both(scenes: Path, broken: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results that `gradients.py` writes in two processes, by rank, strategy and case."""
    output = tmp_path_factory.mktemp("results")
    log, arguments = output / "log", (output, scenes / "val", broken)
    variables = {"TORCHELASTIC_RUN_ID": "a", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(get_free_port())}
    variables |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}  # as torchrun does
    ranks = [{"RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    processes = [forked.begin(log, gradients.main, *arguments, **variables, **rank) for rank in ranks]
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0], log.read_text()[-2000:]
    return [dict(torch.load(output / f"{rank}.pt", weights_only=True)) for rank in range(2)]


@pytest.fixture(params=["ddp", "fsdp"])
def of_rank_0(request: pytest.FixtureRequest, both: list[dict[str, Any]]) -> dict[str, Any]:
    """The results of rank 0 with one strategy, by case."""
    return dict(both[0][request.param])


def in_one(loss: str) -> tuple[float, float, dict[str, torch.Tensor]]:
    """Loss, accuracy and gradients of the whole batch in this process."""
    model = gradients.made_model(loss)
    out = model(*gradients.made_batch())
    value = make_criterion(loss, True)(**out)
    value.backward()
    scores = out["image_features"] @ out["text_features"].T
    targets, directions = torch.arange(len(scores)), (1,) if loss == "siglip" else (0, 1)
    accuracy = torch.stack([(scores.argmax(dim) == targets).float().mean() for dim in directions]).mean()
    return value.item(), float(accuracy), gradients.gradients_of(model)


assert_same = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)  # sums in another order


@pytest.mark.parametrize("case", [case for case in gradients.CASES if "yes" in case])
def test_two_processes_match_the_loss_and_gradients_of_one_process(
    case: str, of_rank_0: dict[str, Any]
) -> None:
    result, loss = of_rank_0[case], case.split()[0]
    value, accuracy, expected = in_one(loss)
    assert result["loss"] == pytest.approx(value, abs=1e-5)
    assert result["accuracy"] == pytest.approx(accuracy)
    assert_same(result["gradients"], expected)
    # the norm and the clipping cover all gradients together, also if they are sharded
    model = gradients.made_model(loss)
    for name, parameter in model.named_parameters():
        parameter.grad = expected[name].clone()
    norm = clip_gradients(SimpleNamespace(world_size=1), model, 10)
    assert result["norm"].item() == pytest.approx(norm.item(), rel=1e-5)
    assert_same(result["clipped"], gradients.gradients_of(model))
    total = torch.nn.utils.get_total_norm(result["clipped"].values())
    assert total.item() == pytest.approx(10, rel=1e-3)


@pytest.mark.parametrize("case", [case for case in gradients.CASES if "no" in case])
def test_without_gradient_gathering_gathered_features_are_constants(
    case: str, of_rank_0: dict[str, Any]
) -> None:
    model = gradients.made_model()
    out = model(*gradients.made_batch())
    images, texts, scale = out["image_features"], out["text_features"], out["logit_scale"]
    with torch.no_grad():  # d/dx of the mean of −log softmax(s·xYᵀ) over both directions, Y held fixed
        logits, identity, rows = scale * images @ texts.T, torch.eye(len(images)), 2 * len(images)
        to_text, to_image = logits.softmax(1) - identity, logits.T.softmax(1) - identity
        of_images, of_texts = scale * to_text @ texts / rows, scale * to_image @ images / rows
        of_scale = ((to_text * logits).sum() + (to_image * logits.T).sum()) / scale / rows
        loss = (logits.logsumexp(1).mean() + logits.logsumexp(0).mean()) / 2 - logits.diagonal().mean()
    torch.autograd.backward([images, texts, scale], [of_images, of_texts, of_scale])
    assert of_rank_0[case]["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert_same(of_rank_0[case]["gradients"], gradients.gradients_of(model))
    assert not torch.allclose(in_one("clip")[2]["image_projection"], model.image_projection.grad, atol=1e-4)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_validate_like_one_and_both_raise_errors(
    strategy: str, both: list[dict[str, Any]], scenes: Path, broken: Path
) -> None:
    fabric = make_fabric(Hardware(accelerator="cpu").resolved(), "fp32")
    fabric.launch()
    alone = {"validation": gradients.validated(fabric, scenes / "val")}
    alone["broken"] = gradients.validated(fabric, broken)
    for rank in range(2):
        for case, expected in alone.items():
            result = both[rank][strategy][case]
            assert result["scores"] == pytest.approx(expected["scores"])
            for tower, layers in result["correlation"].items():
                assert layers == pytest.approx(expected["correlation"][tower], abs=1e-5)
            assert result["finite"]
        assert both[rank][strategy]["validation"]["error"] == "no tokens today"
        assert result["correlation"].keys() == {"visual", "text"}
        assert (result["scores"]["images"], result["faults"]) == (6, 6)


def test_processes_started_by_slurm_or_torchrun_are_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="set MASTER_ADDR"):
        Hardware(nodes=2).resolved()

    def set_env(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    set_env(SLURM_PROCID="5", SLURM_JOB_NAME="train", SLURM_NTASKS="8", SLURM_NNODES="2")
    set_env(SLURM_LOCALID="1", SLURM_NODEID="1")
    hardware = Hardware(accelerator="cpu").resolved()
    assert (hardware.devices, hardware.nodes, hardware.world) == (4, 2, 8)
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "")
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE")  # as under `srun --ntasks`
    assert make_fabric(hardware, "fp32").world_size == 8
    with pytest.raises(InputError, match="leave --devices and --nodes out"):
        Hardware(8, accelerator="cpu").resolved()
    set_env(SLURM_NTASKS="1", SLURM_NNODES="1")  # a batch script without srun
    assert launched_sizes() is None
    set_env(SLURM_NTASKS="8", SLURM_JOB_NAME="bash")  # an interactive job: this program starts the processes
    assert Hardware(2, accelerator="cpu").resolved().world == 2
    set_env(TORCHELASTIC_RUN_ID="a", LOCAL_WORLD_SIZE="2", WORLD_SIZE="6", RANK="3")
    hardware = Hardware(accelerator="cpu").resolved()
    assert (hardware.devices, hardware.nodes) == (2, 3)


def test_texts_cut_to_the_longest_of_a_pass_keep_their_features() -> None:
    model, (_, tokens) = gradients.made_model(), gradients.made_batch()
    short = [row for row, length in enumerate(gradients.LENGTHS) if length <= 8]
    cut = cut_texts(tokens[short], [gradients.LENGTHS[row] for row in short])
    assert cut.shape == (len(short), 8)
    torch.testing.assert_close(model.encode_text(cut), model.encode_text(tokens)[short], rtol=0, atol=1e-5)
    assert cut_texts(tokens, gradients.LENGTHS).shape == tokens.shape  # 16 are more than the context


def test_both_passes_over_a_micro_batch_draw_the_same_drop_paths() -> None:
    """Drop path differs between a batch and its micro-batches, but both passes over a micro-batch must agree."""
    model = gradients.made_model(drop_path=0.5).train()
    features: list[torch.Tensor] = []

    def forward(images: torch.Tensor, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        out = model(images, tokens)
        features.append(out["image_features"].detach())
        return out

    torch.manual_seed(1)
    batch = gradients.made_batch()
    criterion, lengths = make_criterion("clip", True), [12] * len(batch[0])
    backward_in_parts(forward, criterion, *batch, lengths, torch.Tensor.backward, 4, nullcontext)
    assert len(features) == 6
    for first, second in zip(features[:3], features[3:], strict=True):
        assert torch.equal(first, second)
    rng_state = torch.get_rng_state()
    # the random generator is in the same state as after a single pass
    torch.manual_seed(1)
    for part in zip(batch[0].split(4), batch[1].split(4), strict=True):
        model(*part)
    assert torch.equal(torch.get_rng_state(), rng_state)
    assert not torch.equal(features[0], model(batch[0][:4], batch[1][:4])["image_features"])


@pytest.mark.parametrize(
    ("flags", "resolved"), [("avx2 avx512f", "fp32"), ("avx512_bf16", "bf16"), ("amx_bf16", "bf16")]
)
def test_auto_precision_is_bf16_if_the_cpu_supports_it(flags, resolved, monkeypatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"flags : fpu {flags}\n\nflags : fpu")
    assert native_precision("auto", "cpu") == resolved
    assert native_precision("fp32", "cpu") == "fp32"

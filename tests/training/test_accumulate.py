"""Parts of a batch give the whole batch's gradients."""

from __future__ import annotations

from contextlib import nullcontext

import gradients
import pytest
import torch

from diffclip.training.accumulate import backward_in_parts, backward_whole
from diffclip.training.losses import make_criterion


def run(loss: str, size: int | None, checkpointing: bool = False):
    model = gradients.made_model(loss).train()
    model.set_grad_checkpointing(checkpointing)
    arguments = (model, make_criterion(loss, True), *gradients.made_batch(), torch.Tensor.backward)
    if size is None:
        value, out = backward_whole(*arguments)
    else:
        value, out = backward_in_parts(*arguments, size, nullcontext)
    return value, out, gradients.gradients_of(model)


@pytest.mark.parametrize(
    ("loss", "size", "checkpointing"),
    [("clip", 5, False), ("clip", 6, True), ("siglip", 5, True)],
)
def test_parts_have_the_loss_and_gradients_of_the_batch(loss: str, size: int, checkpointing: bool) -> None:
    value, out, expected = run(loss, None)
    in_parts, out_in_parts, found = run(loss, size, checkpointing)
    assert in_parts.item() == pytest.approx(value.item(), abs=1e-5)
    torch.testing.assert_close(out_in_parts, dict(out), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_parts_draw_the_same_paths_twice() -> None:
    """With drop path the batch differs from its parts (other draws), but both passes over a part must agree."""
    model = gradients.made_model(drop_path=0.5).train()
    seen: list[torch.Tensor] = []

    def forward(images: torch.Tensor, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        out = model(images, tokens)
        seen.append(out["image_features"].detach())
        return out

    torch.manual_seed(1)
    batch = gradients.made_batch()
    backward_in_parts(forward, make_criterion("clip", True), *batch, torch.Tensor.backward, 4, nullcontext)
    assert len(seen) == 6
    for first, second in zip(seen[:3], seen[3:], strict=True):
        assert torch.equal(first, second)
    after = torch.get_rng_state()
    # the generator goes on from where one pass has left it
    torch.manual_seed(1)
    for part in zip(batch[0].split(4), batch[1].split(4), strict=True):
        model(*part)
    assert torch.equal(torch.get_rng_state(), after)
    assert not torch.equal(seen[0], model(batch[0][:4], batch[1][:4])["image_features"])

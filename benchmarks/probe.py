"""Time of an iteration of the linear probe's L-BFGS, beside torch's, and the difference of the layers that they find.

python -m benchmarks.probe
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.about import parser_of
from diffclip.evaluation.linear_probe import MAX_ITERATIONS, fit_layer

IMAGES, WIDTH, CLASSES = 2400, 128, 8


def fit_with_torch(values: Tensor, labels: Tensor, cost: float) -> tuple[Tensor, int]:
    """Fit the probe's layer with `torch.optim.LBFGS`; return its weights and the number of iterations."""
    layer = torch.nn.Linear(WIDTH, CLASSES)
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    optimizer = torch.optim.LBFGS(layer.parameters(), line_search_fn="strong_wolfe", max_iter=MAX_ITERATIONS)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(layer(values), labels) + 0.5 / cost * layer.weight.norm()
        loss.backward()
        return loss

    optimizer.step(closure)
    return layer.weight.detach(), int(optimizer.state[layer.weight]["n_iter"])


def main() -> None:
    parser_of(__doc__).parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (IMAGES,), generator=generator)
    centers = torch.randn(CLASSES, WIDTH, generator=generator)
    # features of very different scales, so that large costs do not converge, as features of small models do
    values = torch.randn(IMAGES, WIDTH, generator=generator) @ torch.randn(WIDTH, WIDTH, generator=generator)
    values = (values + centers[labels]) * torch.logspace(0, -3, WIDTH)
    for cost in (1e2, 1e4, 1e6):
        ratios = []
        for _ in range(3):
            start = time.process_time()
            weight, iterations = fit_with_torch(values, labels, cost)
            middle = time.process_time()
            fit = fit_layer(values, labels, CLASSES, cost)
            ratios.append((middle - start) / iterations / ((time.process_time() - middle) / fit.iterations))
        difference = float((weight - fit.weight).abs().max() / weight.abs().max())
        print(
            f"cost {cost:g}: {iterations} and {fit.iterations} iterations, an iteration {sorted(ratios)[1]:.1f} times "
            f"as quick (three turns: {min(ratios):.1f} to {max(ratios):.1f}), weights differ by {difference:.1%}"
        )


if __name__ == "__main__":
    main()

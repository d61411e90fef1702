"""Replace the attention of a plain CLIP by the published differential attention, as attempts that collapsed did it.

    python -m benchmarks.swapped runs/flickr8k_cpu/CLIP-s0 runs/flickr8k_finetune/start/DiffCLIP-s0 --seed 0

All weights are copied, because names and shapes are the same. λ (0.8 at first) and the head norms are new. The result
is the baseline that `diffclip convert --to-differential` is compared with.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.about import parser_of
from diffclip.model import CLIP
from diffclip.sources.load import load_clip
from diffclip.sources.registry import find_model
from diffclip.weights import save_weights


def swapped(plain: CLIP, seed: int) -> CLIP:
    """Make a DiffCLIP of the same sizes with the weights of `plain`."""
    towers = {
        tower: getattr(plain.config, tower).model_copy(update={"attention": "differential"})
        for tower in ("vision", "text")
    }
    model = CLIP(plain.config.model_copy(update={**towers, "lambda_init": 0.8}), seed=seed)
    model.load_state_dict(model.state_dict() | plain.state_dict())
    return model


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("source", help="a run or saved folder of a plain CLIP")
    parser.add_argument("target", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="of λ's vectors")
    options = parser.parse_args()
    save_weights(
        swapped(load_clip(find_model(options.source) or options.source)[0], options.seed), options.target
    )


if __name__ == "__main__":
    main()

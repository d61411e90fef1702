"""A program that several processes run: a validation, and one that fails in the last process, told as JSON lines.

torchrun --nproc-per-node 2 validations.py VAL STRATEGY
"""

from __future__ import annotations

import json
import sys

import torch
from gradients import made_model

from diffclip.data.evaluation_sets import caption_set
from diffclip.data.shards import Shards, expand_shards
from diffclip.errors import DiffCLIPError
from diffclip.training.distributed import make_fabric
from diffclip.training.launch import Hardware
from diffclip.training.recipe import parse_recipe
from diffclip.training.validation import validate


def main() -> None:
    val, strategy = sys.argv[1:]
    fabric = make_fabric(Hardware(strategy=strategy, accelerator="cpu").resolved(), "fp32")
    fabric.launch()
    model = made_model()
    wrapped = fabric.setup_module(model)
    wrapped(torch.zeros(2, 3, 32, 32), torch.ones(2, 12, dtype=torch.int64))  # as a step of training would
    data = caption_set("validation", "val", Shards(expand_shards(val)))
    recipe = parse_recipe(
        {"model": "DiffCLIP-ViT-Ti-16", "epochs": 1, "batch_size": 8, "data": {"train": val}}, "test"
    )

    def tokenizer(texts: list[str]) -> torch.Tensor:
        return torch.tensor([[1 + hash_of(text) % 40] * 11 + [49] for text in texts])

    def failing(texts: list[str]) -> torch.Tensor:
        if fabric.global_rank == fabric.world_size - 1:
            raise DiffCLIPError("no tokens today")
        return tokenizer(texts)

    found = validate(fabric, model, data, tokenizer, recipe)
    told: dict[str, object] = {
        "rank": fabric.global_rank,
        "scores": found.scores,
        "faults": len(found.faults),
    }
    told["correlation"] = found.map_correlation
    try:
        validate(fabric, model, data, failing, recipe)
    except DiffCLIPError as error:
        told["error"] = str(error)
    # the model is as it was: another step goes through
    out = wrapped(torch.zeros(2, 3, 32, 32), torch.ones(2, 12, dtype=torch.int64))
    told["finite"] = bool(out["image_features"].isfinite().all())
    sys.stdout.write("told " + json.dumps(told) + "\n")  # in one write: the processes share the pipe


def hash_of(text: str) -> int:
    return sum(ord(letter) * place for place, letter in enumerate(text, 1))


if __name__ == "__main__":
    main()

"""`diffclip.train` on a map-style dataset: the same steps as on shards with the same samples."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_sets import write_shard_of
from PIL import Image
from tiny_recipe import tiny_recipe

import diffclip
from diffclip import InputError
from diffclip.data.dataset import DatasetPairs
from diffclip.errors import Fault
from diffclip.training.recipe import parse_recipe
from diffclip.training.run_folder import read_lines

PIXELS = np.random.default_rng(0).integers(0, 256, (16, 20, 24, 3), dtype=np.uint8)
ITEMS = [(pixels, [f"a caption {i}", f"another {i}"]) for i, pixels in enumerate(PIXELS)]


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def test_a_dataset_trains_as_shards_with_the_same_samples(tmp_path: Path) -> None:
    samples = [
        (f"{i:02}", {"png": png(pixels), "txt": "\n".join(texts).encode()})
        for i, (pixels, texts) in enumerate(ITEMS)
    ]
    shard = write_shard_of(tmp_path / "train.tar", samples)
    losses = []
    for name, given in (("shards", {}), ("own", {"data": ITEMS, "val": ITEMS[:8]})):
        recipe = parse_recipe(tiny_recipe(data={"train": str(shard), "val": str(shard)}), "test")
        outcome = diffclip.train(recipe, tmp_path / name, **given)
        assert outcome.progress.step == 4
        losses.append([line["loss"] for line in read_lines(tmp_path / name / "metrics.jsonl")])
    assert losses[0] == losses[1]
    assert "dataset list" in (tmp_path / "own" / "recipe.yaml").read_text()
    assert read_lines(tmp_path / "own" / "validation.jsonl")
    assert diffclip.evaluate(tmp_path / "own", "retrieval", ITEMS)[0].count == 32


def test_longer_captions_than_those_of_the_weights(tmp_path: Path) -> None:
    recipe = parse_recipe(tiny_recipe(data={"train": "none.tar"}, epochs=1), "test")
    diffclip.train(recipe, tmp_path / "start", data=ITEMS)
    fields = {"model": "of-weights", "weights": str(tmp_path / "start"), "context_length": 40}
    longer = {
        key: value for key, value in tiny_recipe(epochs=1).items() if key not in ("model", "architecture")
    }
    diffclip.train(
        parse_recipe(longer | fields | {"data": {"train": "none.tar"}}, "test"), tmp_path / "long", data=ITEMS
    )
    assert diffclip.load(tmp_path / "long")[0].positional_embedding.shape == (40, 16)


class Late:
    """Images that are opened late, one of them broken, and captions, some of them blank."""

    def __init__(self, folder: Path) -> None:
        self.files = [folder / f"{i}.png" for i in range(len(ITEMS))]
        for file, (pixels, _) in zip(self.files, ITEMS, strict=True):
            file.write_bytes(png(pixels))
        self.files[3].write_bytes(png(PIXELS[3])[:300])

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[Any, list[str]]:
        if i == 5:
            raise ValueError("no such item")
        image = np.zeros((0, 4, 3), np.uint8) if i == 6 else Image.open(self.files[i])
        return image, ["", " "] if i == 4 else ["", f" a caption {i}"]


def test_broken_items_of_a_dataset_are_skipped_and_named(tmp_path: Path) -> None:
    data = Late(tmp_path)
    pairs = DatasetPairs(data)
    assert pairs[0].captions.texts == ["a caption 0"]
    reasons = {i: str(pairs[i]) for i in range(len(pairs)) if isinstance(pairs[i], Fault)}
    assert list(reasons) == [3, 4, 5, 6]
    for i, words in enumerate(("cannot be read (OSError", "no text", "(ValueError: no such", "[0, 4, 3]"), 3):
        assert reasons[i].startswith(f"dataset Late[{i}] has") or i == 5
        assert words in reasons[i]
    recipe = parse_recipe(tiny_recipe(data={"train": "none.tar"}, epochs=1), "test")
    outcome = diffclip.train(recipe, tmp_path / "run", data=data, val=data)
    assert {fault.name for fault in outcome.skipped} >= {f"validation[{i}]" for i in (3, 4, 5, 6)}
    assert read_lines(tmp_path / "run" / "validation.jsonl")[0]["images"] == len(ITEMS) - 4


def test_items_without_captions_are_skipped_and_named(tmp_path: Path) -> None:
    recipe = parse_recipe(tiny_recipe(data={"train": "none.tar"}, epochs=1), "test")
    mixed = [(pixels, i if i % 2 else "a text") for i, pixels in enumerate(PIXELS)]
    outcome = diffclip.train(recipe, tmp_path / "mixed", data=mixed)
    assert any("needs captions" in str(fault) for fault in outcome.skipped)
    with pytest.raises(InputError, match="fewer than the batch size"):
        diffclip.train(recipe, tmp_path / "few", data=mixed[:4])

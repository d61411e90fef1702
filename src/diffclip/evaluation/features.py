"""Features of a frozen vision tower, computed once and kept in the user's cache folder.

They are what a probe learns from: the class token after the final norm, before the projection into the joint
space (768 wide in a ViT-B), in float32 and of any length.

Shapes: N pictures, D vision width.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.samples import Fault, Transform
from diffclip.data.transforms import EvalTransform
from diffclip.errors import InputError
from diffclip.evaluation.embed import Progress, evaluating
from diffclip.files import cache_folder, write_atomically

if TYPE_CHECKING:
    from diffclip.model import CLIP

_FORMAT = 1
# Labels and class names are no part of what is kept.
_PICTURES = ("name", "split", "source", "samples")


@dataclass(frozen=True)
class Features:
    """Features [N, D] float32 of labelled pictures, their classes int64 [N], and what they are of, for messages.

    Raises:
        InputError: no picture, shapes that do not fit, or a feature that is not finite.
    """

    where: str
    values: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.labels.shape != self.values.shape[:1] or not len(self.labels):
            shapes = f"{list(self.values.shape)} and {list(self.labels.shape)}"
            raise InputError(f"{self.where}: features and labels of shapes {shapes}, not [N, D] and [N]")
        broken = int((~self.values.isfinite()).any(1).sum())
        if broken:
            raise InputError(
                f"{self.where}: the features of {broken} of {len(self.labels)} pictures are not finite numbers: "
                "the model's weights are damaged or its training diverged, use another checkpoint"
            )

    def check_classes(self, classes: int) -> None:
        """Raise `InputError` for a label outside 0 ≤ label < `classes`."""
        low, high = int(self.labels.min()), int(self.labels.max())
        if not 0 <= low <= high < classes:
            raise InputError(
                f"{self.where}: labels run from {low} to {high}, but there are {classes} classes: correct them"
            )

    def take(self, indices: Tensor, where: str) -> Features:
        """Some of the pictures, called `where`."""
        return Features(where, self.values[indices], self.labels[indices])


@dataclass(frozen=True)
class FeatureReader:
    """Features of sets by one model, from the cache where they were computed before.

    They are kept by the tower's architecture and the content of its weights, the transform, and the set: its name,
    split and samples, with the name, size and time of each shard or file. A transform that is not `eval_transform`'s
    cannot be told from another, so its features are not kept. A damaged file counts as none.
    """

    model: CLIP
    preprocess: Transform
    batch_size: int = 64
    workers: int = 0
    progress: Progress | None = None

    def read(self, data: EvaluationSet) -> Features:
        """The features of a classification set; broken pictures are left out, see `data.faults`.

        Raises:
            InputError: every picture is broken, or a feature is not finite.
        """
        stamp = self._stamp(data)
        kept = None if stamp is None else _file_of(stamp)
        found = _load(kept, stamp, len(data)) if kept and stamp else None
        if found is None:
            found = self._compute(data)
            features = self._labelled(data, found)
            if kept and stamp:
                _keep(kept, stamp, found)
            return features
        data.faults = list(dict.fromkeys(data.faults + found.faults))
        if self.progress:
            self.progress(f"{data.split} pictures", len(data), len(data))
        return self._labelled(data, found)

    @cached_property
    def _tower(self) -> str:
        return digest_of(self.model.visual)

    def _stamp(self, data: EvaluationSet) -> str | None:
        transform = self.preprocess
        if not isinstance(transform, EvalTransform):
            return None
        config, known = self.model.config, data.identity
        identity = {
            "format": _FORMAT,
            "tower": config.vision.model_dump(mode="json"),
            "lambda_init": config.lambda_init,
            **config.model_dump(include={"differential"}),
            "weights": self._tower,
            "transform": [transform.image_size, transform.preprocess.model_dump(mode="json")],
            "set": {key: known[key] for key in _PICTURES},
        }
        return json.dumps(identity, sort_keys=True)

    def _compute(self, data: EvaluationSet) -> _Found:
        weight = next(iter(self.model.parameters()))
        before = set(data.faults)
        values, positions = [], []
        with evaluating(self.model):
            for batch in data.batches(self.preprocess, self.batch_size, self.workers):
                images = batch.images.to(weight.device, weight.dtype, non_blocking=True)
                values.append(self.model.visual(images).float().cpu().numpy())
                positions += batch.positions
                if self.progress:
                    self.progress(f"{data.split} pictures", len(batch.positions), len(data))
        if not values:
            raise InputError(f"{data.name}/{data.split} has no picture: the set is empty")
        faults = [fault for fault in data.faults if fault not in before]
        return _Found(np.concatenate(values), np.array(positions, dtype=np.int64), faults)

    @staticmethod
    def _labelled(data: EvaluationSet, found: _Found) -> Features:
        labels = torch.tensor(data.labels)[torch.from_numpy(found.positions)]
        return Features(f"{data.name}/{data.split}", torch.from_numpy(found.values), labels)


def digest_of(module: nn.Module) -> str:
    """A hash of the names, types, shapes and bytes of all that `module` holds."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


@dataclass(frozen=True)
class _Found:
    """Features float32 [N, D], the positions int64 [N] of their pictures in the set, and what was left out."""

    values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    positions: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    faults: list[Fault]


def _file_of(stamp: str) -> Path:
    return cache_folder() / "features" / f"{hashlib.sha256(stamp.encode()).hexdigest()[:20]}.npz"


def _load(kept: Path, stamp: str, samples: int) -> _Found | None:
    try:
        with np.load(kept, allow_pickle=False) as data:
            if str(data["stamp"]) != stamp:
                return None
            values, positions = data["values"], data["positions"]
            faults = [Fault(str(name), str(reason)) for name, reason in data["faults"]]
    # zipfile and NumPy raise almost anything for damaged bytes, and the pictures are the authority
    except Exception:
        return None
    fits = values.ndim == 2 and values.dtype == np.float32 and len(values) == len(positions) > 0
    return _Found(values, positions, faults) if fits and 0 <= positions.max() < samples else None


def _keep(kept: Path, stamp: str, found: _Found) -> None:
    faults = [(fault.name, fault.reason) for fault in found.faults]
    try:
        with write_atomically(kept) as temporary, temporary.open("wb") as handle:
            np.savez(
                handle,
                stamp=np.array(stamp),
                values=found.values,
                positions=found.positions,
                faults=np.array(faults, dtype=np.str_).reshape(-1, 2),
            )
    except (InputError, OSError):
        # A cache that cannot be written costs the time again, nothing else.
        return

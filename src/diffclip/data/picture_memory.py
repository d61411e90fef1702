"""Pictures in memory: what the trainings and evaluations of a machine need not decode again."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from diffclip.data.corpus import Corpus
from diffclip.data.decoded import DecodedCorpus, decoded_corpus
from diffclip.data.kept_pictures import KeptPictures
from diffclip.data.resident import ResidentLoader, stacked
from diffclip.data.transforms import TrainTransform
from diffclip.tokenizer import Tokenizer


class PictureMemory:
    """Decoded training pictures and transformed evaluation pictures, for any number of runs.

    They lie in files, which all processes that are given the same folder map into their memory: the system holds them
    once. On a GPU training pictures lie there too, those of the last corpus, as long as this object lives.

    Args:
        folder: for the files; may be removed when nothing runs.
        limit: bytes of evaluation pictures that are kept.
        batched: whether the crops of a batch are made at once, which rounds in another way than one by one; None: on a
            GPU.

    Attributes:
        for_evaluation: the transformed pictures, for `diffclip.data.pictures.keeping`.
    """

    def __init__(self, folder: str | Path, limit: int = 8_000_000_000, batched: bool | None = None) -> None:
        self.folder, self.batched = Path(folder), batched
        self.for_evaluation = KeptPictures(self.folder / "evaluation", limit)
        self._stack: tuple[Path, Tensor] | None = None

    def loader(
        self,
        corpus: Corpus,
        transform: TrainTransform,
        tokenizer: Tokenizer,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        device: torch.device | None = None,
    ) -> ResidentLoader:
        """What `CaptionLoader` is for these arguments, with the pictures on `device` (None: in this machine's memory).

        Raises:
            InputError: as `CaptionLoader`; the corpus is remote or has a window, its pictures take more memory than is
                free, or the folder cannot be written.
        """
        device = device or torch.device("cpu")
        decoded = decoded_corpus(corpus, self.folder / "training")
        batched = device.type != "cpu" if self.batched is None else self.batched
        stack = self._stacked(decoded, device) if batched else None
        tokens = decoded.tokens(tokenizer)
        return ResidentLoader(corpus, decoded, tokens, transform, batch_size, seed, stack, rank, world)

    def _stacked(self, decoded: DecodedCorpus, device: torch.device) -> Tensor:
        if self._stack is None or self._stack[0] != decoded.folder or self._stack[1].device != device:
            self._stack = None  # before there are two
            self._stack = (decoded.folder, stacked(decoded, device))
        return self._stack[1]

"""A setting whose set is batches in memory: what zero-shot classification and retrieval read of a set."""

from types import SimpleNamespace

import torch

from diffclip.data.evaluation_set import ImageBatch
from diffclip.evaluation.setting import Setting


def labeled(model, tokenizer, batches, classnames, templates) -> Setting:
    """`batches` of images [B, 3, S, S] and B labels."""
    made = [ImageBatch(images, [], torch.tensor(labels), None) for images, labels in batches]
    return _setting(model, tokenizer, made, classnames=classnames, templates=templates)


def captioned(model, tokenizer, batches) -> Setting:
    """`batches` of images [B, 3, S, S] and the captions of each."""
    made = [ImageBatch(images, [], None, captions) for images, captions in batches]
    return _setting(model, tokenizer, made)


def _setting(model, tokenizer, batches, **fields) -> Setting:
    data = SimpleNamespace(batches=lambda *how: iter(batches), **fields)
    return Setting(model, None, tokenizer, data)

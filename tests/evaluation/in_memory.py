"""A setting whose set is batches in memory: what zero-shot classification and retrieval read of a set."""

from itertools import chain
from types import SimpleNamespace

from diffclip.data.evaluation_set import ImageBatch
from diffclip.evaluation.embed import Setting


def in_memory(model, tokenizer, batches, **fields) -> Setting:
    """`batches` of images [B, 3, S, S] and the label or captions of each; `fields` of the set."""
    made, start = [], 0
    for images, answers in batches:
        made.append(ImageBatch(images, list(range(start, start + len(images))), None, answers))
        start += len(images)
    answers = list(chain.from_iterable(answers for _, answers in batches))
    data = SimpleNamespace(batches=lambda *how: iter(made), labels=answers, **fields)
    return Setting(model, None, tokenizer, data)

import pytest
import torch
from in_memory import in_memory
from subjects import subject

from diffclip.errors import InputError
from diffclip.evaluation.zero_shot import retrieval

ONE = subject(image_size=16)
model, tokenizer = ONE.model, ONE.tokenizer


@pytest.fixture
def batches():
    generator = torch.Generator().manual_seed(0)
    captions = [[f"{i}{j}caption"[: 4 + j] for j in range(1 + i % 3)] for i in range(50)]
    images = torch.randn(50, 3, 16, 16, generator=generator)
    return [(images[start : start + 16], captions[start : start + 16]) for start in range(0, 50, 16)]


def test_it_equals_clip_benchmark(batches):
    theirs = pytest.importorskip("clip_benchmark.metrics.zeroshot_retrieval")
    wanted = theirs.evaluate(model, batches, tokenizer, "cpu", amp=False, recall_k_list=[1, 5, 10])
    scores = retrieval(in_memory(model, tokenizer, batches))
    found = {score.metric: score.value for score in scores}
    assert found.pop("mean_recall") == pytest.approx(sum(wanted.values()) / 6, abs=1e-7)
    assert found == pytest.approx(wanted, abs=1e-7)


def test_images_without_captions_are_left_out_of_one_direction(batches):
    batches[0][1][3] = []
    scores = {score.metric: score for score in retrieval(in_memory(model, tokenizer, batches))}
    assert scores["text_retrieval_recall@1"].count == 49
    assert scores["image_retrieval_recall@1"].count == sum(1 + i % 3 for i in range(50)) - 1


def test_an_empty_set():
    with pytest.raises(InputError, match="no image"):
        retrieval(in_memory(model, tokenizer, []))
    with pytest.raises(InputError, match="no text"):
        retrieval(in_memory(model, tokenizer, [(torch.randn(1, 3, 16, 16), [[]])]))

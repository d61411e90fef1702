import pytest
import torch
import torch.nn.functional as F

from diffclip.evaluation import metrics
from diffclip.evaluation.metrics import (
    NOT_ASKED,
    chance_at,
    chance_of_image_to_text,
    classification_ranks,
    hits_at,
    retrieval_ranks,
)


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def uneven_owners(images: int) -> torch.Tensor:
    """One to seven captions per image, in a shuffled order."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(1, 8, (images,), generator=generator)
    owners = torch.arange(images).repeat_interleave(counts)
    return owners[torch.randperm(len(owners), generator=generator)]


@pytest.mark.parametrize("chunk", [1, 1 << 22])
def test_retrieval_ranks_equal_brute_force(monkeypatch, chunk):
    monkeypatch.setattr(metrics, "_CHUNK_SCORES", chunk)
    images, owners = unit(90, 8), uneven_owners(90)
    texts = unit(len(owners), 8, seed=1)
    to_image, to_text = retrieval_ranks(images, texts, owners)
    scores = (texts @ images.T).tolist()
    for text, owner in enumerate(owners.tolist()):
        true_score = scores[text][owner]
        rivals = [score for image, score in enumerate(scores[text]) if image != owner]
        assert to_image[text] == sum(not score < true_score for score in rivals)
    for image in range(90):
        best = max(scores[text][image] for text, owner in enumerate(owners) if owner == image)
        rivals = [scores[text][image] for text, owner in enumerate(owners) if owner != image]
        assert to_text[image] == sum(not score < best for score in rivals)


def test_ties_count_against_the_model():
    classifier = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert classification_ranks(features, classifier, torch.tensor([0, 1, 2])).tolist() == [1, 1, 0]
    images = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # the first two are the same image
    to_image, to_text = retrieval_ranks(images, images, torch.arange(3))
    assert to_image.tolist() == [1, 1, 0]
    assert to_text.tolist() == [1, 1, 0]


def test_image_without_captions_is_only_a_distractor():
    images = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    texts = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    to_image, to_text = retrieval_ranks(images, texts, torch.tensor([1, 2]))
    assert to_image.tolist() == [1, 0]
    assert to_text.tolist() == [NOT_ASKED, 0, 0]
    assert float(hits_at(to_text, 1).mean()) == 1
    assert hits_at(to_text, 1).tolist() == [1, 1]


def test_chance_equals_the_mean_recall_of_random_orders():
    assert chance_at(1, 10) == pytest.approx(0.1)
    assert chance_at(10, 5) == 1
    owners = uneven_owners(12)
    generator = torch.Generator().manual_seed(3)
    for k in (1, 5):
        texts_hit, images_hit = [], []
        for _ in range(400):
            images = torch.eye(12)
            texts = torch.rand(len(owners), 12, generator=generator)
            to_image, to_text = retrieval_ranks(images, texts, owners)
            texts_hit.append(float(hits_at(to_image, k).mean()))
            images_hit.append(float(hits_at(to_text, k).mean()))
        assert sum(texts_hit) / 400 == pytest.approx(chance_at(k, 12), abs=0.02)
        assert sum(images_hit) / 400 == pytest.approx(chance_of_image_to_text(k, owners), abs=0.02)

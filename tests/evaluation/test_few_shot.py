import numpy as np
import pytest
import torch

from diffclip.errors import InputError
from diffclip.evaluation.embed import Features
from diffclip.evaluation.few_shot import (
    EPISODES,
    QUERIES,
    SHOT,
    WAY,
    draw_episodes,
    episode_hits,
    score_episodes,
)


def labelled(seed: int, sizes: list[int]) -> tuple:
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(len(sizes), 16, generator=torch.Generator().manual_seed(7))
    labels = torch.cat([torch.full((size,), label) for label, size in enumerate(sizes)])
    labels = labels[torch.randperm(len(labels), generator=generator)]
    values = centers[labels] + torch.randn(len(labels), 16, generator=generator)
    return values, labels


def one_episode(train, test, supports, queries, mask) -> float:
    """Compute the accuracy of one episode with a loop over images."""
    center = np.mean([train[i] for indices in supports for i in indices], axis=0)

    def normalize(row):
        row = row - center
        return row / np.linalg.norm(row)

    prototypes = [np.mean([normalize(train[i]) for i in indices], axis=0) for indices in supports]
    right = [
        int(np.argmin([np.linalg.norm(normalize(test[i]) - p) for p in prototypes])) == label
        for label, indices in enumerate(queries)
        for i, is_query in zip(indices, mask[label], strict=True)
        if is_query
    ]
    return sum(right) / len(right)


def accuracies(hits, episodes):
    return hits.sum((1, 2)).double() / episodes.mask.sum((1, 2))


def test_episode_accuracies_equal_a_plain_loop():
    train, train_labels = labelled(0, [12, 5, 9, 30, 6, 7, 8])
    test, test_labels = labelled(1, [9, 6, 3, 20, 6, 1, 15])
    episodes = draw_episodes(train_labels, test_labels, 7, seed=3, episodes=120)
    got = accuracies(episode_hits(train, test, episodes), episodes)
    x, y = train.double().numpy(), test.double().numpy()
    wanted = [
        one_episode(x, y, *(part[i].numpy() for part in (episodes.supports, episodes.queries, episodes.mask)))
        for i in range(120)
    ]
    assert got.tolist() == wanted
    assert len(set(wanted)) > 5


def test_episodes_have_distinct_classes_and_uniform_images():
    _, train = labelled(0, [5, 8, 40, 6, 7, 9])
    _, test = labelled(1, [6, 4, 50, 7, 8, 1])
    episodes = draw_episodes(train, test, 6, seed=0, episodes=2000)
    assert episodes.supports.shape == (2000, WAY, SHOT)
    assert episodes.queries.shape == episodes.mask.shape == (2000, WAY, QUERIES)
    classes = train[episodes.supports]
    assert (classes == classes[..., :1]).all()
    assert (classes[..., 0].sort(1).values.diff(dim=1) > 0).all()
    assert (episodes.supports.sort(2).values.diff(dim=2) > 0).all()
    mask = episodes.mask
    assert (test[episodes.queries][mask] == classes[..., :1].expand(mask.shape)[mask]).all()
    assert (mask.sum(2) == torch.bincount(test).clamp(max=QUERIES)[classes[..., 0]]).all()
    padded = episodes.queries.masked_fill(~mask, -1).sort(2).values
    assert ((padded.diff(dim=2) > 0) | (padded[..., :-1] == -1)).all()
    # every class and every image is equally likely
    assert torch.bincount(classes[..., 0].flatten()) / 2000 == pytest.approx([5 / 6] * 6, abs=0.04)
    draws = torch.bincount(episodes.supports[classes == 2], minlength=len(train))[train == 2]
    assert draws / (2000 * 5 / 6) == pytest.approx([5 / 40] * 40, abs=0.05)


@pytest.fixture
def both():
    return [Features(name, *labelled(seed, [10] * 6)) for seed, name in enumerate(("s/train", "s/test"))]


def test_score_is_the_mean_over_answers_clustered_by_image(both):
    train, test = both
    score = score_episodes(train, test, list("abcdef"))
    assert (score.metric, score.count, score.chance) == ("acc1", EPISODES, 0.2)
    assert 0.5 < score.value < 1
    assert score.low < score.value < score.high
    assert score.high - score.low > 0.02  # 60 test images, not 5000 independent episodes
    noise = Features("s/test", torch.randn(60, 16, generator=torch.Generator().manual_seed(5)), test.labels)
    assert score_episodes(train, noise, list("abcdef")).value == pytest.approx(0.2, abs=0.05)


def test_constant_features_score_zero():
    labels = labelled(0, [6] * 5)[1]
    same = Features("s", torch.ones(30, 4), labels)
    assert score_episodes(same, same, list("abcde")).value == 0


def test_too_few_classes_or_images_are_refused(both):
    train, test = both
    rest = train.labels != 2
    scarce = Features("s/train", train.values[rest], train.labels[rest])
    for learned, names, words in (
        (train, "abcd", "s/test: few-shot draws 5 classes per episode, but the set has 4"),
        (scarce, "abcdef", "s/train: class 'c' has 0 images, and 5 are needed to learn from: add"),
    ):
        with pytest.raises(InputError, match=words):
            score_episodes(learned, test, list(names))

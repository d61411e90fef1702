import numpy as np
import pytest

from diffclip.errors import InputError
from diffclip.scenes import COLORS, PATTERNS, SHAPES, draw_scene, minimal_pair
from diffclip.scenes.questions import NEGATIVES, image_name, question_indices, question_scene, questions


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pair_differs_in_one_thing_and_either_image_may_come_first(pattern):
    pairs = [minimal_pair(pattern, index, seed=3) for index in range(40)]
    for pair in pairs:
        first, second = pair.images
        assert first.shape == second.shape == (64, 64, 3)
        equal = (first == second).all(axis=-1)
        assert 0.2 < equal.mean() < 0.999, "the rest of the image stays as it is"
        assert pair.statements[0] != pair.statements[1]
    if pattern == "Quantity and Count":
        more_first = [pair.statements[0].split()[0] > pair.statements[1].split()[0] for pair in pairs]
        assert 4 < sum(more_first) < 36


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: minimal_pair("Text", 0), "did you mean 'Texts'"),
        (lambda: minimal_pair("Texts", 0, size=8), "too small"),
        (lambda: questions(5, "randm"), "did you mean 'random'"),
        (lambda: questions(0), "at least one image"),
    ],
)
def test_bad_arguments_are_named(call, words):
    with pytest.raises(InputError, match=words):
        call()


def area(image, color):
    """The number of pixels that could be of a named color, shading included."""
    ratio = image.astype(float) / np.maximum(np.array(COLORS[color], float), 1)
    mean = ratio.mean(axis=-1)
    return ((np.abs(ratio - mean[..., None]).max(axis=-1) < 0.12) & (mean > 0.5)).sum()


def test_more_is_more_and_near_is_larger():
    for index in range(30):
        for pattern in ("Quantity and Count", "Viewpoint and Perspective"):
            pair = minimal_pair(pattern, index)
            words = pair.statements[0].split()
            color = next(word for word in words if word in COLORS)
            if color not in ("red", "blue", "purple", "pink", "turquoise", "green"):
                continue
            areas = [area(image, color) for image in pair.images]
            more = ("two", "three", "four", "close", "front")
            ranks = [
                max([0, *(more.index(w) + 1 for w in text.split() if w in more)]) for text in pair.statements
            ]
            assert (areas[0] > areas[1]) == (ranks[0] > ranks[1]), pair.statements


def test_colors_are_as_stated():
    checked = 0
    for index in range(60):
        pair = minimal_pair("Color and Appearance", index, size=96)
        colors = [next(w for w in text.split() if w in COLORS) for text in pair.statements]
        if colors[0] == colors[1]:
            continue
        changed = (pair.images[0].astype(int) - pair.images[1]).any(axis=-1)
        for image, own, other in zip(pair.images, colors, colors[::-1], strict=True):
            median = np.median(image[changed], axis=0)
            assert np.abs(median - COLORS[own]).sum() < np.abs(median - COLORS[other]).sum()
        checked += 1
    assert checked > 20


@pytest.mark.parametrize("negatives", NEGATIVES)
def test_answers_are_true_and_balanced(negatives):
    images = 60
    asked = questions(images, negatives, seed=2)
    scenes = {image_name(i): question_scene(i, seed=2, size=16) for i in question_indices(images, seed=2)}
    scene = question_scene(question_indices(1)[0])
    test_scene = draw_scene(question_indices(1)[0], split="test", objects=len(scene.objects))
    assert np.array_equal(scene.image, test_scene.image)
    assert [q.question_id for q in asked] == list(range(1, 6 * images + 1))
    assert [q.label for q in asked] == ["yes", "no"] * (3 * images)
    assert len({(q.image, q.text) for q in asked}) == len(asked)
    for question in asked:
        start, color, shape = question.text.removesuffix(" in the picture?").rsplit(" ", 2)
        assert start in ("Is there a", "Is there an")
        assert (start[-1] == "n") == (color[0] in "aeiou")
        assert color in COLORS
        assert shape in SHAPES
        things = scenes[question.image].objects
        assert any((t.color, t.shape) == (color, shape) for t in things) == (question.label == "yes")
        if negatives == "adversarial":
            assert any(t.color == color or t.shape == shape for t in things)


def test_popular_negatives_are_the_frequent_kinds():
    asked = {negatives: questions(80, negatives) for negatives in NEGATIVES}
    variety = {name: len({q.text for q in those if q.label == "no"}) for name, those in asked.items()}
    assert variety["popular"] < 0.2 * variety["random"]

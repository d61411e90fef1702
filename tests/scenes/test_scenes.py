import hashlib
import json
from collections import Counter

import numpy as np
import pytest

from diffclip.data.published_sets import PATTERNS
from diffclip.errors import InputError
from diffclip.scenes.pairs import minimal_pair
from diffclip.scenes.questions import (
    NEGATIVES,
    TOPICS,
    image_name,
    question_indices,
    question_scene,
    questions,
)
from diffclip.scenes.scene import STYLES, draw_scene
from diffclip.scenes.vocabulary import COLORS, SHAPES, TEXTURES


def test_splits_seeds_and_indices_share_no_image():
    images = [
        draw_scene(index, split=split, seed=seed).image.tobytes()
        for split in ("train", "val", "test")
        for seed in (0, 1)
        for index in range(40)
    ]
    assert len(set(images)) == len(images)


@pytest.mark.parametrize("size", [16, 100])
def test_masks_boxes_and_centers_agree(size):
    for index in range(60):
        scene = draw_scene(index, size=size)
        assert (scene.image.shape, scene.image.dtype) == ((size, size, 3), np.uint8)
        assert sum(thing.mask.astype(int) for thing in scene.objects).max() == 1
        assert scene.index_mask.max() == len(scene.objects)
        for number, thing in enumerate(scene.objects, start=1):
            assert np.array_equal(scene.index_mask == number, thing.mask)
            left, top, right, bottom = thing.box
            assert thing.mask[top:bottom, left:right].sum() == thing.mask.sum() > 0
            assert thing.mask[[top, bottom - 1]].any(1).all()
            assert thing.mask[:, [left, right - 1]].any(0).all()
            x, y = thing.center
            assert left - 2 <= x <= right + 2
            assert top - 2 <= y <= bottom + 2


def test_an_object_shows_its_named_color_and_no_other():
    names = list(COLORS)
    palette = np.array([COLORS[name] for name in names], float)
    for index in range(300):
        scene = draw_scene(index, size=96)
        for thing in scene.objects:
            if thing.texture != "plain" or thing.detail is not None or thing.shape == "flower":
                continue
            pixels = scene.image[thing.mask].astype(float)
            median = np.median(pixels, axis=0)
            assert names[int(np.abs(palette - median).sum(axis=1).argmin())] == thing.color


def test_orientation_is_where_the_shape_points():
    for index in range(100):
        (thing,) = draw_scene(index, objects=1, shape="triangle").objects
        left, top, right, bottom = thing.box
        shape = thing.mask[top:bottom, left:right]
        turned = {"up": shape, "down": shape[::-1], "left": shape.T, "right": shape.T[::-1]}[
            thing.orientation
        ]
        # the base lies opposite to where a triangle points
        assert turned.sum(axis=1).argmax() / (len(turned) - 1) > 0.7


@pytest.mark.parametrize("style", [style for style in STYLES if style != "plain"])
def test_a_shift_keeps_geometry_and_labels(style):
    for index in range(25):
        plain, shifted = (draw_scene(index, split="test", style=name) for name in ("plain", style))
        assert not np.array_equal(plain.image, shifted.image)
        assert np.array_equal(plain.index_mask, shifted.index_mask)
        assert [t.shape for t in plain.objects] == [t.shape for t in shifted.objects]
        if style == "noisy":
            assert shifted.captions == plain.captions
        else:
            words = " ".join(shifted.captions).split()
            assert not set(words) & {*COLORS, *TEXTURES, "sand", "grass", "sky", "wood", "stone", "paper"}


def test_scenes_match_the_recorded_hash_and_means():
    """A change of these values needs a higher FORMAT in scenes/write.py, so that older folders are not reused."""
    scenes = [
        draw_scene(index, split=split, seed=3, style=style, size=32)
        for split in ("train", "val", "test")
        for style in STYLES
        for index in range(8)
    ]
    contents = [
        [scene.captions, scene.background, [(thing.shape, thing.color, thing.box) for thing in scene.objects]]
        for scene in scenes
    ]
    pairs = [minimal_pair(pattern, index, seed=3, size=32) for pattern in PATTERNS for index in range(4)]
    asked = [entry for topic in TOPICS for kind in NEGATIVES for entry in questions(20, kind, 3, topic)]
    text = json.dumps([contents, [statements for _, statements in pairs], asked])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "cba6643be226b285"
    # pixels may differ in the last bit between processors
    means = [np.mean([scene.image for scene in scenes]), np.mean([images for images, _ in pairs])]
    assert means == pytest.approx([140.21, 140.61], abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 15}, "size 15 is too small"),
        ({"objects": 5}, "1 to 4 objects"),
        ({"shape": "sqare"}, "did you mean 'square'"),
        ({"seed": -1}, "seed -1 is out of range"),
        ({"distractors": 65}, "distractors 65 is out of range"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        draw_scene(0, **arguments)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pair_differs_in_one_thing_and_either_image_may_come_first(pattern):
    pairs = [minimal_pair(pattern, index, seed=3) for index in range(40)]
    for (first, second), statements in pairs:
        assert first.shape == second.shape == (64, 64, 3)
        equal = (first == second).all(axis=-1)
        assert 0.2 < equal.mean() < 0.999, "the rest of the image stays as it is"
        assert statements[0] != statements[1]
    if pattern == "Quantity and Count":
        more_first = [first.split()[0] > second.split()[0] for _, (first, second) in pairs]
        assert 4 < sum(more_first) < 36


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("negatives", NEGATIVES)
def test_answers_are_true_and_balanced(negatives, topic):
    images, balance = 60, Counter()
    asked = questions(images, negatives, seed=2, topic=topic)
    scenes = {image_name(i): question_scene(i, seed=2, size=16) for i in question_indices(images, seed=2)}
    assert [q["question_id"] for q in asked] == list(range(1, len(asked) + 1))
    assert len({(q["image"], q["text"]) for q in asked}) == len(asked)
    for question in asked:
        is_yes = question["label"] == "yes"
        balance[question["image"]] += 1 if is_yes else -1
        start, color, shape = question["text"].removesuffix(" in the picture?").rsplit(" ", 2)
        things = scenes[question["image"]].objects
        if topic == "colours":
            assert any(t.color == shape for t in things) == is_yes
            continue
        assert start in ("Is there a", "Is there an")
        assert (start[-1] == "n") == (color[0] in "aeiou")
        assert color in COLORS
        assert shape in SHAPES
        assert any((t.color, t.shape) == (color, shape) for t in things) == is_yes
        if negatives == "adversarial":
            assert any(t.color == color or t.shape == shape for t in things)
    assert len(balance) == images
    assert not any(balance.values())
    if topic == "kinds":
        assert [q["label"] for q in asked] == ["yes", "no"] * (3 * images)

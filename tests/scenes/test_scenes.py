import hashlib
import json

import numpy as np
import pytest

from diffclip.errors import InputError
from diffclip.scenes import COLORS, PATTERNS, STYLES, TEXTURES, draw_scene, minimal_pair, questions
from diffclip.scenes.questions import NEGATIVES, TOPICS


def test_distractors_change_nothing_but_pixels_beside_the_objects():
    few, many, plain = (draw_scene(4, size=48, distractors=count) for count in (4, 16, 0))
    assert many.captions == plain.captions
    for thing, same in zip(many.objects, plain.objects, strict=True):
        assert np.array_equal(thing.mask, same.mask)
    changed = [(scene.image != plain.image).any(-1).mean() for scene in (few, many)]
    assert 0.01 < changed[0] < changed[1] < 0.6


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
            shown = np.median(pixels, axis=0)
            assert names[int(np.abs(palette - shown).sum(axis=1).argmin())] == thing.color


def test_orientation_is_where_the_shape_points():
    seen = set()
    for index in range(400):
        (thing,) = draw_scene(index, objects=1, shape="triangle").objects
        left, top, right, bottom = thing.box
        shape = thing.mask[top:bottom, left:right]
        turned = {"up": shape, "down": shape[::-1], "left": shape.T, "right": shape.T[::-1]}[
            thing.orientation
        ]
        # the base lies opposite to where a triangle points
        assert turned.sum(axis=1).argmax() / (len(turned) - 1) > 0.7
        seen.add(thing.orientation)
    assert seen == {"up", "down", "left", "right"}


@pytest.mark.parametrize("style", [style for style in STYLES if style != "plain"])
def test_a_shift_keeps_geometry_and_labels(style):
    for index in range(25):
        plain, shifted = (draw_scene(index, split="test", style=one) for one in ("plain", style))
        assert not np.array_equal(plain.image, shifted.image)
        assert np.array_equal(plain.index_mask, shifted.index_mask)
        assert [t.shape for t in plain.objects] == [t.shape for t in shifted.objects]
        if style == "noisy":
            assert shifted.captions == plain.captions
        else:
            words = " ".join(shifted.captions).split()
            assert not set(words) & {*COLORS, *TEXTURES, "sand", "grass", "sky", "wood", "stone", "paper"}


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
        draw_scene(**({"index": 0} | arguments))


def test_scenes_are_what_they_were():
    """A change here needs another FORMAT in scenes/write.py, so that folders drawn before are not reused."""
    scenes = [
        draw_scene(index, split=split, seed=3, style=style, size=32)
        for split in ("train", "val", "test")
        for style in STYLES
        for index in range(8)
    ]
    said = [
        [one.captions, one.background, [(thing.shape, thing.color, thing.box) for thing in one.objects]]
        for one in scenes
    ]
    pairs = [minimal_pair(pattern, index, seed=3, size=32) for pattern in PATTERNS for index in range(4)]
    asked = [vars(one) for topic in TOPICS for how in NEGATIVES for one in questions(20, how, 3, topic)]
    text = json.dumps([said, [pair.statements for pair in pairs], asked])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "cba6643be226b285"
    # pixels may differ in the last bit between processors
    means = [np.mean([scene.image for scene in scenes]), np.mean([pair.images for pair in pairs])]
    assert means == pytest.approx([140.21, 140.61], abs=0.01)

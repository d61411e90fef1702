import io

import numpy as np
import pytest
import torch
from made_sets import encoded
from masked_sets import animals, box_mask, noise, png, write_masked
from PIL import Image, ImageOps

from diffclip.config import PreprocessConfig
from diffclip.data.masks import MaskedObject, coverage, crop_box, read_mask
from diffclip.data.open_set import open_set
from diffclip.errors import InputError
from diffclip.preprocess import EvalTransform
from diffclip.scenes.write import DrawnSet, write_shard


def blob(width: int, height: int) -> np.ndarray:
    x, y = np.meshgrid(np.linspace(-1, 1, width), np.linspace(-1, 1, height))
    return (((x - 0.4) * 1.5) ** 2 + (y + 0.3) ** 2 < 0.3).astype(np.uint8) * 255


def test_nonzero_values_are_object_in_every_kind_of_png():
    wanted = box_mask(3, 2, 9, 7, 12, 10) > 0
    # the second color of the palette is also black: the index counts, not the color
    palette = Image.fromarray(wanted.astype(np.uint8), "P")
    palette.putpalette([0, 0, 0, 0, 0, 0, 255, 255, 255])
    bits, gray16 = png(wanted.astype(np.uint8) * 255, "1"), png(wanted.astype(np.uint16) * 300)
    for data in (encoded(palette), bits, gray16):
        values, size = read_mask(data, png(noise(0, 12, 10)))
        np.testing.assert_array_equal(values != 0, wanted)
        assert size == (12, 10)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GIF89a, which is not one", "no PNG"),
        (png(noise(0))[:-60], "image or mask that is broken"),
        (png(np.zeros((4, 4, 4), np.uint8)), "in color or with transparency"),
        (png(np.zeros((4, 4, 3), np.uint8)), "in color or with transparency"),
    ],
)
def test_invalid_masks_are_refused_with_the_reason(data, words):
    with pytest.raises(InputError, match=words):
        read_mask(data, png(noise(0, 4, 4)))


@pytest.mark.parametrize(
    ("width", "height", "edge"), [(64, 64, 48), (90, 61, 64), (61, 90, 48), (37, 200, 64), (3, 400, 48)]
)
def test_coverage_matches_the_models_crop(width, height, edge):
    mask = blob(width, height)
    preprocess = PreprocessConfig(resize=edge, mean=(0, 0, 0), std=(1, 1, 1))
    crop = EvalTransform(48, preprocess)(Image.fromarray(mask).convert("RGB"))[0]
    wanted = torch.nn.functional.avg_pool2d(crop[None], 8)[0]
    shares = coverage(mask > 0, crop_box((width, height), 48, edge), 6)
    assert shares.shape == (6, 6)
    # the transform smooths across the edges of patches, more so if it enlarges the image
    assert np.abs(shares - wanted.numpy()).max() < (0.06 if min(width, height) > 30 else 0.5)
    assert np.abs(shares - wanted.numpy()).mean() < 0.02


def test_coverage_matches_values_by_hand():
    mask = np.zeros((4, 6), bool)
    mask[0, 3] = True
    # the crop is the middle 4×4; its upper right patch has that pixel on the left
    np.testing.assert_allclose(coverage(mask, crop_box((6, 4), 4, 4), 2), [[0, 0.25], [0, 0]])
    assert crop_box((6, 4), 4, "squash") == (0, 0, 1, 1)
    # a patch is 1.5 pixels wide: two pixels cover a third of the first patch and all of the second
    mask[:] = False
    mask[:, 1:3] = True
    np.testing.assert_allclose(coverage(mask, (0.0, 0.0, 1.0, 1.0), 4), [[1 / 3, 1, 0, 0]] * 4)


@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
def test_exif_orientation_of_an_image_applies_to_its_mask(orientation):
    stored = noise(1, 20, 12)[..., 0] > 128
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = encoded(stored.astype(np.uint8) * 255, exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(image)))) > 0
    masks = [stored, upright] if orientation >= 5 else [stored]
    for mask in masks:
        for data in (png(mask.astype(np.uint8)), png(mask.astype(np.uint16) * 300)):
            values, size = read_mask(data, image)
            np.testing.assert_array_equal(values > 0, upright)
            assert size == upright.shape[::-1]


def test_missing_masks_and_masks_of_another_shape_become_faults(tmp_path):
    samples = [
        {"png": png(noise(0, 40, 32)), "mask.png": png(box_mask(10, 0, 15, 16, 20, 16)), "txt": "a cat"},
        {"png": png(noise(1, 40, 32)), "mask.png": png(box_mask(10, 0, 15, 16, 20, 20)), "txt": "a cat"},
        {"png": png(noise(2, 40, 32)), "txt": "a cat"},
    ]
    data = open_set(write_masked(tmp_path / "set", samples), "test", kind="masks")
    assert len(data) == 2
    objects, shares = data.coverages(0, 32, 32, 2)
    assert objects == [MaskedObject("a cat", "a cat")]
    np.testing.assert_allclose(shares, [[[0, 0.625]] * 2], atol=1e-9)
    assert data.coverages(1, 32, 32, 2)[0] == []
    missing, mismatch = data.faults
    assert missing.reason == "has no mask (.mask.png)"
    assert mismatch.name.endswith(":s0000001")
    assert mismatch.reason == "has a mask of 20×20 pixels, another shape than its image's 40×32"
    assert mismatch.kind == "broken"


def test_objects_that_a_crop_cannot_show_are_left_out_with_a_fault(tmp_path):
    wide = png(noise(0, 96, 32))
    masks = [box_mask(left, 0, right, 32, 96, 32) for left, right in ((0, 20), (20, 76), (0, 0), (0, 50))]
    samples = [{"png": wide, "mask.png": png(mask), "txt": "a cat"} for mask in masks]
    data = open_set(write_masked(tmp_path / "set", samples), "test", kind="masks")
    assert [len(data.coverages(i, 32, 32, 4)[0]) for i in range(4)] == [0, 0, 0, 1]
    assert [fault.reason.removeprefix("has an object that ") for fault in data.faults] == [
        "lies outside the model's crop: 'a cat'",
        "fills the model's crop: 'a cat'",
        "has no pixel in its mask: 'a cat'",
    ]
    assert {fault.kind for fault in data.faults} == {"mask"}


def test_mask_texts_come_from_the_class_or_the_first_caption_line(tmp_path):
    samples = [sample | {"txt": "a cat\nanother line"} for sample in animals(2)]
    samples.append({key: value for key, value in animals(1)[0].items() if key != "txt"} | {"cls": "1"})
    files = {"classnames.txt": "cat\ndog"}
    files["zeroshot_classification_templates.txt"] = "a sketch of a {c}\na {c}"
    data = open_set(write_masked(tmp_path / "set", samples, files), "test", kind="masks")
    assert (data.kind, data.name) == ("masks", "set")
    assert data.captions == [["a cat"], ["a cat"], ["a sketch of a dog"]]
    assert data.objects[2][0].worded("the {c}") == "the dog"
    assert data.objects[2][0].worded("anything") == "anything"


def test_scenes_have_one_item_for_each_distinct_thing(tmp_path):
    drawn = DrawnSet("captions", "captions", "test", "plain", 16)
    write_shard(tmp_path / "test" / "0.tar", drawn, 32, 0, 0, range(16))
    data = open_set(tmp_path, "test", kind="masks")
    several = next(
        i for i, objects in enumerate(data.objects) if any(len(item.values) > 1 for item in objects)
    )
    for position in (0, several):
        objects, shares = data.coverages(position, 32, 32, 32)
        sample = data.source[data.indices[position]].read("image", "mask.png")
        mask, _ = read_mask(sample["mask.png"], sample["image"])
        assert objects == data.objects[position]
        for item, share in zip(objects, shares, strict=True):
            np.testing.assert_array_equal(share > 0.5, np.isin(mask, item.values))
            article, name = item.text.split(" ", 1)
            assert (article in ("a", "an"), name) == (True, item.name)
        assert len({item.name for item in objects}) == len(objects)


@pytest.mark.parametrize(
    ("lacks", "more", "words"),
    [
        ("mask.png", {}, r"no sample in .* has image and mask .* add a .mask.png"),
        ("txt", {}, "s0000000 has no text for its mask"),
        ("txt", {"cls": "0"}, "has no classnames.txt"),
    ],
)
def test_an_unusable_mask_set_is_refused_with_the_reason(tmp_path, lacks, more, words):
    samples = [{key: data for key, data in sample.items() if key != lacks} | more for sample in animals(2)]
    with pytest.raises(InputError, match=words) as caught:
        open_set(write_masked(tmp_path / "set", samples), "test", kind="masks")
    assert "\n" not in str(caught.value)

"""SugarCrepe's layout, its accuracies against the published script's, and scenes in its layout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from mean_color import Colors
from PIL import Image

from diffclip.data.evaluation_sets import open_set
from diffclip.data.published_files import open_choices
from diffclip.data.published_sets import PUBLISHED
from diffclip.errors import InputError
from diffclip.evaluation.embed import Setting
from diffclip.evaluation.run import open_for, run_task
from diffclip.scenes import PATTERNS, minimal_pair
from diffclip.scenes.write import write_choices

COLORS = ("red", "green", "blue")
FILES = [name.removesuffix(".json") for name in PUBLISHED["sugarcrepe"].files]


def tokens(texts: list[str]) -> torch.Tensor:
    return torch.tensor([[next(i for i, name in enumerate(COLORS) if name in text)] for text in texts])


class Pixels:
    """Prepares nothing; `describe_images` asks for these fields."""

    from diffclip.config import PreprocessConfig

    image_size, preprocess = 8, PreprocessConfig()

    def __call__(self, image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


def write_set(folder: Path, files=FILES, images: str = "val2017") -> dict[str, list[bool]]:
    """Three images; file k has k + 2 items, of which the second has its captions swapped and the last a tie.

    Returns which items are right for `Colors`.
    """
    place = folder / images
    place.mkdir(parents=True)
    for number, color in enumerate([(200, 0, 0), (0, 200, 0), (0, 0, 200)]):
        Image.new("RGB", (8, 8), color).save(place / f"{number:012d}.jpg")
    right = {}
    for more, name in enumerate(files):
        items, right[name] = {}, []
        for n in range(more + 2):
            own, other = f"a {COLORS[n % 3]} thing", f"a {COLORS[(n + 1) % 3]} thing"
            kind = "tie" if n == more + 1 else "wrong" if n == 1 else "right"
            captions = {"right": (own, other), "wrong": (other, own), "tie": (own, own)}[kind]
            fields = dict(zip(("caption", "negative_caption"), captions, strict=True))
            items[str(2 * n)] = {"filename": f"{n % 3:012d}.jpg", **fields}  # numbers with gaps
            right[name].append(kind == "right")
        (folder / f"{name}.json").write_text(json.dumps(items))
    return right


def scores_of(data, model=None):
    scores = run_task(None, Setting(model or Colors(), Pixels(), tokens, data, batch_size=2))
    return {score.metric: score for score in scores}


def test_accuracies_are_those_of_the_published_script(tmp_path) -> None:
    right = write_set(tmp_path / "sugarcrepe")
    data = open_set("sugarcrepe", "test", tmp_path)
    assert (data.kind, data.name, len(data)) == ("sugarcrepe", "sugarcrepe", 3)
    found = scores_of(data)
    assert list(found) == ["average", *FILES]
    for name in FILES:
        assert found[name].hits.tolist() == right[name]
        assert (found[name].value, found[name].chance) == (pytest.approx(np.mean(right[name])), 0.5)
    average = found["average"]
    assert average.value == pytest.approx(np.mean([np.mean(own) for own in right.values()]))
    assert average.hits.mean() == pytest.approx(average.value)
    assert (average.count, average.facts["of"]) == (sum(map(len, right.values())), tuple(FILES))
    assert 0 <= average.low <= average.value <= average.high <= 1
    assert len(set(average.clusters.tolist())) == 3


def test_a_folder_of_any_files_with_the_images_of_coco_beside_it(tmp_path) -> None:
    write_set(tmp_path / "mine", ["swap_obj", "own_kind"], images="../mscoco_captions/val2017")
    found = scores_of(open_for("sugarcrepe", str(tmp_path / "mine"), "test"))
    assert list(found) == ["average", "own_kind", "swap_obj"]
    write_set(tmp_path / "other", ["swap_obj"])
    one, two = (open_choices("a", tmp_path / name) for name in ("mine", "other"))
    assert one.identity["answers"] != two.identity["answers"]


def test_a_part_has_the_items_of_its_images(tmp_path) -> None:
    write_set(tmp_path / "set", ["swap_obj", "swap_att", "add_obj"])
    whole = open_choices("set", tmp_path / "set").choices
    with pytest.raises(InputError, match="has no splits: leave --split out"):
        open_for("sugarcrepe", str(tmp_path / "set"), "val")
    data = open_for("sugarcrepe", str(tmp_path / "set"), "test[1:3]")
    assert (len(data), data.split) == (2, "test[1:3]")
    kept = [one for one in whole if one.image in (1, 2)]
    assert [(one.caption, one.image + 1) for one in data.choices] == [
        (one.caption, one.image) for one in kept
    ]


def test_an_image_that_cannot_be_read_takes_its_items_along(tmp_path) -> None:
    write_set(tmp_path / "set", ["swap_obj", "swap_att", "add_obj"])
    broken = tmp_path / "set" / "val2017" / f"{1:012d}.jpg"
    broken.write_bytes(broken.read_bytes()[:100])
    data = open_choices("set", tmp_path / "set")
    found = scores_of(data)
    assert [found[name].count for name in ("swap_obj", "swap_att", "add_obj")] == [1, 2, 3]
    assert [fault.name for fault in data.faults] == [str(broken)]


def test_scenes_are_minimal_pairs_in_its_layout(tmp_path) -> None:
    write_choices(tmp_path / "scenes", 1, 32, seed=3)
    data = open_set(tmp_path / "scenes", "test")
    assert (data.kind, len(data), len(data.choices)) == ("sugarcrepe", 18, 18)
    for pattern in PATTERNS:
        pair = minimal_pair(pattern, 0, 3, 32)
        own = [choice for choice in data.choices if choice.file == pattern.lower().replace(" ", "_")]
        assert [(choice.caption, choice.negative) for choice in own] == [
            pair.statements,
            pair.statements[::-1],
        ]


ITEM = '{"0": {"filename": "0.jpg", "caption": "a", "negative_caption": "b"}}'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", r"swap_obj\.json cannot be read \(Expecting property name"),
        ('{"0": {"filename": "0.jpg", "caption": "a"}}', r"'negative_caption'\): give a file of items with"),
        (ITEM, r"0\.jpg does not exist: 1 of the 1 images of .*val2017\.zip.*mscoco_captions"),
        (None, r"no JSON file of SugarCrepe"),
    ],
)
def test_what_it_does_not_take_is_one_line(tmp_path, content, words) -> None:
    if content is not None:
        (tmp_path / "swap_obj.json").write_text(content)
    with pytest.raises(InputError, match=words) as error:
        open_for("sugarcrepe", tmp_path, "test")
    assert "\n" not in str(error.value)

"""Pairs of MMVP-VLM and choices of SugarCrepe: file layouts, the published scripts' numbers, scenes in both."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from subjects import setting, subject
from torch import nn

from diffclip.config import PreprocessConfig
from diffclip.data.choices import open_choices
from diffclip.data.open_set import open_set
from diffclip.data.published_sets import PATTERNS
from diffclip.errors import InputError
from diffclip.evaluation.embed import Setting
from diffclip.evaluation.minimal_pairs import COLUMNS, mmvp, open_pairs, pair_hits
from diffclip.evaluation.run import open_for, run_task
from diffclip.scenes.pairs import minimal_pair
from diffclip.scenes.write import write_choices, write_pairs

COLORS = ("red", "green", "blue")
FILES = ["add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj"]


class Colors(nn.Module):
    """Compares an image's mean color with the color in a statement: right about images of one color."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.eye(3))

    def encode_image(self, images, normalize=False):
        return images.mean((2, 3)) @ self.gain

    def encode_text(self, tokens, normalize=False):
        return nn.functional.one_hot(tokens[:, 0], 3).float() @ self.gain


class Pixels:
    """A transform without preprocessing; the protocol names these fields."""

    image_size, preprocess, identity = 8, PreprocessConfig(), ["as they are"]

    def __call__(self, image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


def tokens(texts: list[str]) -> torch.Tensor:
    return torch.tensor([[next(i for i, name in enumerate(COLORS) if name in text)] for text in texts])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("set") / "mmvp"
    write_pairs(target, 2, 32, seed=3)
    return target


def color_set(target: Path, wrong: tuple[int, ...] = ()) -> Path:
    """Four pairs of a red and a green image in two patterns with short names; the first pattern has one pair."""
    rows: list[tuple] = [COLUMNS]
    for number in range(4):
        kind = "Color" if number else "Camera Perspective"
        for name, color in (("red", (200, 0, 0)), ("green", (0, 200, 0))):
            path = target / "MMVP_VLM_Images" / kind / f"{len(rows)}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), color).save(path)
            rows.append((len(rows), kind, "something red" if number in wrong else f"something {name}"))
    with (target / "Questions.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows(rows)
    return target


def test_statements_must_pick_their_image_and_groups_match_by_the_sum():
    images = torch.eye(2).expand(6, 2, 2).clone()
    a, b, both = [1.0, 0.0], [0.0, 1.0], [0.6, 0.6]
    texts = torch.tensor([[a, b], [a, a], [b, b], [b, a], [a, both], [a, [math.nan, 1.0]]])
    assert pair_hits(images, texts)[0].tolist() == [[1, 1], [1, 0], [0, 1], [0, 0], [1, 0], [1, 0]]
    # both statements prefer the first image, the second less so: the right matching has the larger sum
    images, texts = torch.eye(2)[None], torch.tensor([[[0.9, 0.1], [0.6, 0.5]]])
    assert [hits.tolist() for hits in pair_hits(images, texts)] == [[[1, 0]], [1]]
    assert pair_hits(images.flip(1), texts)[1].tolist() == [0]
    # equal images tie, and a tie is wrong
    images = torch.randn(50, 1, 97, generator=torch.Generator().manual_seed(0)).expand(50, 2, 97)
    texts = torch.randn(50, 2, 97, generator=torch.Generator().manual_seed(1))
    assert not any(hits.any() for hits in pair_hits(images, texts))


def test_mmvp_equals_the_published_script(folder):
    loaded = subject()
    model = loaded.model.train()
    right = {pattern: [] for pattern in PATTERNS}
    with torch.no_grad(), (folder / "Questions.csv").open(newline="") as file:
        rows = list(csv.reader(file))[1:]
        for pair in zip(rows[::2], rows[1::2], strict=True):
            paths = [folder / "MLLM_VLM Images" / row[1] / f"{row[0]}.jpg" for row in pair]
            images = torch.stack([loaded.preprocess(Image.open(path)) for path in paths])
            predictions = []
            for row in pair:
                out = model(images, loaded.tokenizer(["a photo of " + row[2]]))
                logits = out["logit_scale"] * out["text_features"] @ out["image_features"].T
                predictions.append("img1" if logits.softmax(-1)[0, 0] > 0.5 else "img2")
            right[pair[0][1]].append(predictions == ["img1", "img2"])
    results = mmvp(setting(loaded, open_pairs(folder, "mmvp"), batch_size=5))
    scores = {score.metric: score for score in results}
    assert sum(map(sum, right.values())) > 0
    for pattern, wanted in right.items():
        score = scores[f"pair_accuracy/{pattern}"]
        assert (score.count, score.value) == (2, np.mean(wanted))
    mean = sum(sum(hits) / len(hits) for hits in right.values()) / 9
    assert scores["mean_per_pattern_accuracy"].value == pytest.approx(mean)
    whole = ["mean_per_pattern_accuracy", "pair_accuracy", "statement_accuracy", "group_match"]
    assert list(scores) == [*whole, *(f"pair_accuracy/{pattern}" for pattern in PATTERNS)]
    assert model.training  # the mode is restored


def test_mmvp_scores_have_the_right_counts_means_and_intervals(tmp_path):
    pairs = open_pairs(color_set(tmp_path, wrong=(1,)), "mmvp")
    assert {PATTERNS[label] for label in pairs.labels} == {
        "Color and Appearance",
        "Viewpoint and Perspective",
    }
    scores = mmvp(Setting(Colors(), Pixels(), tokens, pairs, 3))
    mean, pooled, statements, groups, color, view = scores
    assert (groups.value, groups.count, groups.chance) == (0.75, 4, 0.5)
    assert (mean.value, mean.count) == (pytest.approx((1 + 2 / 3) / 2), 4)
    assert (pooled.value, pooled.count) == (0.75, 4)
    assert (color.metric, color.count, color.value) == ("pair_accuracy/Color and Appearance", 3, 2 / 3)
    assert (view.metric, view.value, view.high) == ("pair_accuracy/Viewpoint and Perspective", 1, 1)
    assert all(0 <= score.low <= score.value <= score.high <= 1 for score in scores)
    assert (statements.value, statements.count, statements.chance) == (7 / 8, 8, 0.5)
    assert {score.chance for score in scores if score not in (statements, groups)} == {0.25}


def test_the_published_set_keeps_its_name_behind_a_link(tmp_path):
    (tmp_path / "mmvp").symlink_to(color_set(tmp_path / "MMVP_VLM"))
    assert open_for("mmvp", "mmvp", "test", tmp_path).name == "mmvp"


def test_unreadable_image_is_refused_with_its_name(tmp_path):
    broken = color_set(tmp_path) / "MMVP_VLM_Images" / "Color" / "3.jpg"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(InputError, match=r"Color/3\.jpg"):
        mmvp(Setting(Colors(), Pixels(), tokens, open_pairs(tmp_path, "mmvp")))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\n8,Color,something green", "", r"Questions\.csv has 7 rows.*pair"),
        ("Type", "Kind", r"row 1 is not a number, a pattern and a statement: write .'Question ID'"),
        ("\n3,Color", "\n3,Text and Count", r"row 3: unknown pattern.*did you mean 'Quantity and Count'"),
        ("\n4,Color", "\n4,Texts", r"rows 3 and 4 are a pair and name two patterns"),
        ("\n4,Color", "\n../4,Color", r"row 4 is not a number"),
    ],
)
def test_bad_questions_are_refused_in_one_line(tmp_path, old, new, message):
    questions = color_set(tmp_path) / "Questions.csv"
    questions.write_text(questions.read_text("utf-8-sig").replace(old, new))
    with pytest.raises(InputError, match=message) as error:
        open_pairs(tmp_path, "mmvp")
    assert "\n" not in str(error.value)


def test_folders_without_images_or_readable_questions_are_refused(tmp_path):
    questions = tmp_path / "Questions.csv"
    questions.write_bytes(b"Question ID,Type,Statement\n1,Texts,\xff\n")
    with pytest.raises(InputError, match=r"is not MMVP-VLM: give the folder that holds Questions\.csv and"):
        open_pairs(tmp_path, "mmvp")
    (tmp_path / "MLLM_VLM Images").mkdir()
    with pytest.raises(InputError, match=r"cannot read .*Questions\.csv"):
        open_pairs(tmp_path, "mmvp")


def write_set(folder: Path, files=FILES, images: str = "val2017") -> dict[str, list[bool]]:
    """Write three images; file k has k + 2 items, the second with swapped captions and the last with a tie.

    Return which items `Colors` answers correctly.
    """
    image_folder = folder / images
    image_folder.mkdir(parents=True)
    for number, color in enumerate([(200, 0, 0), (0, 200, 0), (0, 0, 200)]):
        Image.new("RGB", (8, 8), color).save(image_folder / f"{number:012d}.jpg")
    right = {}
    for index, name in enumerate(files):
        items, right[name] = {}, [n not in (1, index + 1) for n in range(index + 2)]
        for n in range(index + 2):
            caption, negative = f"a {COLORS[n % 3]} thing", f"a {COLORS[(n + 1) % 3]} thing"
            if n == index + 1:
                negative = caption
            elif n == 1:
                caption, negative = negative, caption
            fields = {"filename": f"{n % 3:012d}.jpg", "caption": caption, "negative_caption": negative}
            items[str(2 * n)] = fields  # numbers with gaps
        (folder / f"{name}.json").write_text(json.dumps(items))
    return right


def scores_of(data, model=None):
    scores = run_task(None, Setting(model or Colors(), Pixels(), tokens, data, batch_size=2))
    return {score.metric: score for score in scores}


def test_sugarcrepe_has_an_accuracy_per_file_and_their_average(tmp_path) -> None:
    right = write_set(tmp_path / "sugarcrepe")
    data = open_set("sugarcrepe", "test", tmp_path)
    assert (data.kind, data.name, len(data)) == ("sugarcrepe", "sugarcrepe", 3)
    scores = scores_of(data)
    assert list(scores) == ["average", *FILES]
    for name in FILES:
        assert scores[name].count == len(right[name])
        assert (scores[name].value, scores[name].chance) == (pytest.approx(np.mean(right[name])), 0.5)
    average = scores["average"]
    assert average.value == pytest.approx(np.mean([np.mean(hits) for hits in right.values()]))
    assert (average.count, average.facts["of"]) == (sum(map(len, right.values())), tuple(FILES))
    assert 0 <= average.low <= average.value <= average.high <= 1


def test_sugarcrepe_folder_may_have_other_files_and_images_beside_it(tmp_path) -> None:
    write_set(tmp_path / "mine", ["swap_obj", "own_kind"], images="../mscoco_captions/val2017")
    scores = scores_of(open_for("sugarcrepe", str(tmp_path / "mine"), "test"))
    assert list(scores) == ["average", "own_kind", "swap_obj"]
    write_set(tmp_path / "other", ["swap_obj"])
    mine, other = (open_choices("a", tmp_path / name) for name in ("mine", "other"))
    assert mine.identity["answers"] != other.identity["answers"]


def test_slice_of_a_split_has_the_items_of_its_images(tmp_path) -> None:
    write_set(tmp_path / "set", ["swap_obj", "swap_att", "add_obj"])
    whole = open_choices("set", tmp_path / "set").choices
    with pytest.raises(InputError, match="has no splits: leave --split out"):
        open_for("sugarcrepe", str(tmp_path / "set"), "val")
    data = open_for("sugarcrepe", str(tmp_path / "set"), "test[1:3]")
    assert (len(data), data.split) == (2, "test[1:3]")
    sliced = [choice for choice in whole if choice.image in (1, 2)]
    assert [(choice.caption, choice.image + 1) for choice in data.choices] == [
        (choice.caption, choice.image) for choice in sliced
    ]


def test_items_of_a_broken_image_are_left_out(tmp_path) -> None:
    write_set(tmp_path / "set", ["swap_obj", "swap_att", "add_obj"])
    broken = tmp_path / "set" / "val2017" / f"{1:012d}.jpg"
    broken.write_bytes(broken.read_bytes()[:100])
    data = open_choices("set", tmp_path / "set")
    scores = scores_of(data)
    assert [scores[name].count for name in ("swap_obj", "swap_att", "add_obj")] == [1, 2, 3]
    assert [fault.name for fault in data.faults] == [str(broken)]


def test_scenes_have_minimal_pairs_in_the_sugarcrepe_layout(tmp_path) -> None:
    write_choices(tmp_path / "scenes", 1, 32, seed=3)
    data = open_set(tmp_path / "scenes", "test")
    assert (data.kind, len(data), len(data.choices)) == ("sugarcrepe", 18, 18)
    for pattern in PATTERNS:
        _, statements = minimal_pair(pattern, 0, 3, 32)
        choices = [choice for choice in data.choices if choice.file == pattern.lower().replace(" ", "_")]
        assert [(choice.caption, choice.negative) for choice in choices] == [statements, statements[::-1]]


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
def test_invalid_sugarcrepe_folder_is_refused_in_one_line(tmp_path, content, words) -> None:
    if content is not None:
        (tmp_path / "swap_obj.json").write_text(content)
    with pytest.raises(InputError, match=words) as error:
        open_for("sugarcrepe", tmp_path, "test")
    assert "\n" not in str(error.value)

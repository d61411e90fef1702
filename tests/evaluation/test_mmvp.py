import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from mean_color import Colors
from PIL import Image

from diffclip import CLIP, CLIPConfig, TextConfig, VisionConfig
from diffclip.data.transforms import EvalTransform
from diffclip.errors import InputError
from diffclip.evaluation.embed import Setting
from diffclip.evaluation.mmvp import COLUMNS, group_hits, mmvp, open_pairs, statement_hits
from diffclip.evaluation.run import open_for
from diffclip.scenes import PATTERNS
from diffclip.scenes.write import write_pairs
from diffclip.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("set") / "mmvp"
    write_pairs(target, 2, 32, seed=3)
    return target


def rewrite(folder: Path, target: Path, change) -> Path:
    """A copy of the folder's csv with `change`d rows, beside the same images."""
    target.mkdir()
    (target / "MLLM_VLM Images").symlink_to(folder / "MLLM_VLM Images")
    with (folder / "Questions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    with (target / "Questions.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(change(rows))
    return target


def color_tokens(texts: list[str]) -> torch.Tensor:
    assert all(text.startswith("a photo of ") for text in texts)
    return torch.tensor([[("red", "green", "blue").index(text.split()[-1])] for text in texts])


def color_set(target: Path, wrong: tuple[int, ...] = (), pairs: int = 4) -> Path:
    """Pairs of a red and a green image in two patterns under their short names, one of them with one pair."""
    rows: list[tuple] = [COLUMNS]
    for number in range(pairs):
        kind = "Color" if number else "Camera Perspective"
        for name, color in (("red", (200, 0, 0)), ("green", (0, 200, 0))):
            place = target / "MMVP_VLM_Images" / kind / f"{len(rows)}.jpg"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), color).save(place)
            rows.append((len(rows), kind, "something red" if number in wrong else f"something {name}"))
    with (target / "Questions.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows(rows)
    return target


def to_colors(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


def test_both_statements_must_pick_their_own():
    images = torch.eye(2).expand(6, 2, 2).clone()
    a, b, both = [1.0, 0.0], [0.0, 1.0], [0.6, 0.6]
    texts = torch.tensor([[a, b], [a, a], [b, b], [b, a], [a, both], [a, [math.nan, 1.0]]])
    assert statement_hits(images, texts).tolist() == [[1, 1], [1, 0], [0, 1], [0, 0], [1, 0], [1, 0]]


def test_equal_images_tie_and_a_tie_is_wrong():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(50, 1, 97, generator=generator).expand(50, 2, 97)
    texts = torch.randn(50, 2, 97, generator=generator)
    assert statement_hits(images, texts).sum() == group_hits(images, texts).sum() == 0


def test_a_group_matches_by_the_sum_of_both_cosines():
    """Both statements prefer the first image, the second one less: the right matching has the larger sum."""
    images, texts = torch.eye(2)[None], torch.tensor([[[0.9, 0.1], [0.6, 0.5]]])
    assert (statement_hits(images, texts).tolist(), group_hits(images, texts).tolist()) == ([[1, 0]], [1])
    assert group_hits(images.flip(1), texts).tolist() == [0]


def test_it_equals_the_literal_script(folder):
    vision = VisionConfig(image_size=32, patch_size=8, width=32, layers=2, heads=4, attention="differential")
    text = TextConfig(context_length=32, width=32, layers=2, heads=4)
    model = CLIP(CLIPConfig(embed_dim=24, vision=vision, text=text), seed=0)
    preprocess, tokenizer = EvalTransform(32, model.config.preprocess), Tokenizer(text)
    right = {pattern: [] for pattern in PATTERNS}
    with torch.no_grad(), (folder / "Questions.csv").open(newline="") as file:
        rows = list(csv.reader(file))[1:]
        for one, two in zip(rows[::2], rows[1::2], strict=True):
            paths = [folder / "MLLM_VLM Images" / row[1] / f"{row[0]}.jpg" for row in (one, two)]
            images = torch.stack([preprocess(Image.open(path)) for path in paths])
            predictions = []
            for row in (one, two):
                out = model(images, tokenizer(["a photo of " + row[2]]))
                logits = out["logit_scale"] * out["text_features"] @ out["image_features"].T
                predictions.append("img1" if logits.softmax(-1)[0, 0] > 0.5 else "img2")
            right[one[1]].append(predictions == ["img1", "img2"])
    scores = {
        score.metric: score
        for score in mmvp(Setting(model, preprocess, tokenizer, open_pairs(folder, "mmvp"), 5))
    }
    assert sum(map(sum, right.values())) > 0
    for pattern, wanted in right.items():
        assert scores[f"pair_accuracy/{pattern}"].hits.tolist() == wanted
    mean = sum(sum(hits) / len(hits) for hits in right.values()) / 9
    assert scores["mean_per_pattern_accuracy"].value == pytest.approx(mean)
    whole = ["mean_per_pattern_accuracy", "pair_accuracy", "statement_accuracy", "group_match"]
    assert list(scores) == [*whole, *(f"pair_accuracy/{pattern}" for pattern in PATTERNS)]
    assert model.training  # as it was before


def test_counts_means_and_intervals(tmp_path):
    pairs = open_pairs(color_set(tmp_path, wrong=(1,)), "mmvp")
    assert {PATTERNS[label] for label in pairs.labels} == {
        "Color and Appearance",
        "Viewpoint and Perspective",
    }
    scores = mmvp(Setting(Colors(), to_colors, color_tokens, pairs, 3))
    mean, pooled, statements, groups, color, view = scores
    assert (groups.value, groups.hits.tolist(), groups.chance) == (0.75, [1, 0, 1, 1], 0.5)
    assert (mean.value, mean.count, mean.hits) == (pytest.approx((1 + 2 / 3) / 2), 4, None)
    assert (pooled.value, pooled.count, pooled.hits.sum()) == (0.75, 4, 3)
    assert (color.metric, color.count, color.hits.sum()) == ("pair_accuracy/Color and Appearance", 3, 2)
    assert (view.metric, view.value, view.high) == ("pair_accuracy/Viewpoint and Perspective", 1, 1)
    assert all(0 <= score.low <= score.value <= score.high <= 1 for score in scores)
    assert (statements.value, statements.count, statements.chance) == (7 / 8, 8, 0.5)
    assert statements.clusters.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {score.chance for score in scores if score not in (statements, groups)} == {0.25}


def test_the_published_set_keeps_its_name_behind_a_link(tmp_path):
    (tmp_path / "mmvp").symlink_to(color_set(tmp_path / "MMVP_VLM"))
    assert open_for("mmvp", "mmvp", "test", tmp_path).name == "mmvp"


def test_an_image_that_cannot_be_read(tmp_path):
    broken = color_set(tmp_path) / "MMVP_VLM_Images" / "Color" / "3.jpg"
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.raises(InputError, match=r"Color/3\.jpg"):
        mmvp(Setting(Colors(), to_colors, color_tokens, open_pairs(tmp_path, "mmvp")))


def changed(number: int, column: int, text: str):
    return lambda rows: [
        [*row[:column], text, *row[column + 1 :]] if k == number else row for k, row in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:-1], r"Questions\.csv has 35 rows.*pair"),
        (changed(0, 1, "Kind"), r"row 1 is not a number, a pattern and a statement: write .'Question ID'"),
        (changed(3, 1, "Text and Count"), r"row 3: unknown pattern.*did you mean 'Quantity and Count'"),
        (changed(4, 1, "Texts"), r"rows 3 and 4 are a pair and name two patterns"),
        (changed(4, 0, "../4"), r"row 4 is not a number"),
    ],
)
def test_bad_questions(folder, tmp_path, change, message):
    with pytest.raises(InputError, match=message) as error:
        open_pairs(rewrite(folder, tmp_path / "set", change), "mmvp")
    assert "\n" not in str(error.value)


def test_bad_folders(tmp_path):
    questions = tmp_path / "Questions.csv"
    questions.write_bytes(b"Question ID,Type,Statement\n1,Texts,\xff\n")
    with pytest.raises(InputError, match=r"is not MMVP-VLM: give the folder that holds Questions\.csv and"):
        open_pairs(tmp_path, "mmvp")
    (tmp_path / "MLLM_VLM Images").mkdir()
    with pytest.raises(InputError, match=r"cannot read .*Questions\.csv"):
        open_pairs(tmp_path, "mmvp")

"""Zero-shot segmentation against counts by hand, on synthetic sets."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from masked_sets import noise, png, write_masked
from PIL import Image
from subjects import run, setting, subject

from diffclip.data.masks import NOT_LABELED, classes_at
from diffclip.data.open_set import open_set
from diffclip.errors import InputError
from diffclip.evaluation.run import run_task
from diffclip.evaluation.segmentation import MAJORITY, count_pixels, mean_iou
from diffclip.evaluation.suite import Entry
from diffclip.scenes import draw_scene
from diffclip.scenes.vocabulary import SHAPES
from diffclip.scenes.write import DrawnSet, write_shard
from diffclip.sources.load import Loaded

CLASSES = ("cat", "dog", "owl")


def labels(number: int, width: int, height: int) -> np.ndarray:
    """About half of the pixels have class 1, the others all values."""
    drawn = np.random.default_rng(number).choice([0, 1, 1, 1, 2, 3, 255], (height, width))
    return drawn.astype(np.uint8)


def sample(number: int) -> dict:
    return {"png": png(noise(number, 40, 24)), "seg.png": png(labels(number, 40, 24))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    files = {"classnames.txt": "\n".join(CLASSES), "zeroshot_classification_templates.txt": "a {c}\none {c}"}
    return write_masked(tmp_path_factory.mktemp("sets") / "animals", map(sample, range(5)), files)


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return subject(image_size=24)


def scores_of(loaded: Loaded, data, **changes):
    scores = run_task("segmentation", setting(loaded, data, **({"batch_size": 2} | changes)))
    return {(score.facts["map"], score.metric): score for score in scores}


@pytest.fixture(scope="module")
def found(folder, loaded):
    return scores_of(loaded, open_set(folder, "test", kind="segmentation"))


@torch.no_grad()
def test_last_values_scores_equal_the_protocol_by_hand(found, loaded) -> None:
    model, statistics = loaded.model, loaded.preprocess.preprocess
    mean, std = (torch.tensor(values)[:, None, None] for values in (statistics.mean, statistics.std))
    prompts = [loaded.tokenizer([f"a {name}", f"one {name}"]) for name in CLASSES]
    texts = [F.normalize(model.encode_text(tokens, normalize=True).mean(0), dim=0) for tokens in prompts]
    confusion = np.zeros((3, 3))
    for number in range(5):
        image = Image.fromarray(noise(number, 40, 24)).resize((24, 24), Image.Resampling.BILINEAR)
        truth = labels(number, 40, 24)
        pixels = (torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255 - mean) / std
        patches = model.encode_patches(pixels[None], normalize=True, readout="last-values")[0]
        cosines = torch.stack([patches @ text for text in texts]).view(1, 3, 3, 3)
        answer = F.interpolate(cosines, (24, 40), mode="bilinear")[0].argmax(0).numpy()
        for y, x in zip(*np.nonzero((truth != 0) & (truth != 255)), strict=True):
            confusion[truth[y, x] - 1, answer[y, x]] += 1
    right = np.diag(confusion)
    wanted = (right / (confusion.sum(0) + confusion.sum(1) - right)).mean()
    score = found["last-values", "mean_iou"]
    assert score.value == pytest.approx(wanted, abs=0.005)  # resizing rounds pixels differently
    accuracy = right.sum() / confusion.sum()
    assert found["last-values", "pixel_accuracy"].value == pytest.approx(accuracy, abs=0.005)
    assert (score.count, score.facts["classes"], score.facts["templates"]) == (5, 3, 2)
    assert score.low <= score.value <= score.high
    assert "squashed to 24 px" in score.facts["protocol"]


def test_scores_include_chance_and_the_majority_class(found) -> None:
    assert list(found) == [
        (name, metric)
        for name in ("attention", "last-values", MAJORITY)
        for metric in ("mean_iou", "pixel_accuracy")
    ]
    values = np.concatenate([labels(number, 40, 24).ravel() for number in range(5)])
    shares = np.array([(values == n).sum() for n in (1, 2, 3)]) / np.isin(values, (1, 2, 3)).sum()
    assert found[MAJORITY, "pixel_accuracy"].value == pytest.approx(shares[0])
    assert found[MAJORITY, "mean_iou"].value == pytest.approx(shares[0] / 3)
    for name in ("attention", MAJORITY):
        assert found[name, "pixel_accuracy"].chance == pytest.approx(1 / 3)
        chance = (shares / 3 / (shares + (1 - shares) / 3)).mean()
        assert found[name, "mean_iou"].chance == pytest.approx(chance)


def test_pixels_are_counted_by_class_and_ties_are_wrong() -> None:
    truth = torch.tensor([[0, 0, 1, 1], [NOT_LABELED, 0, 2, 1]])
    cosines = torch.tensor([[0.5, 0.5, 0.1, 0.1]] * 2), torch.tensor([[0.5, 0.1, 0.9, 0.9]] * 2)
    maps = torch.stack([*cosines, torch.full((2, 4), 0.2)])
    # upsampling a map to its own size leaves it unchanged; the first pixel is a tie of 0 and 1
    counts = count_pixels(maps, truth)
    assert counts.tolist() == [[2, 3, 0], [2, 5, 0], [3, 3, 1]]
    assert mean_iou(counts.double().numpy()) == pytest.approx((2 / 3 + 3 / 5 + 0) / 3)
    same = count_pixels(torch.ones(3, 1, 1), truth)
    assert same[0].sum() == 0
    assert mean_iou(np.array([[1.0, 0], [2, 1], [3, 0]])) == pytest.approx(1 / 4)  # only one class occurs


def test_batch_sizes_agree_and_suite_entries_work(folder, loaded, found) -> None:
    batched = scores_of(loaded, open_set(folder, "test"), batch_size=5)
    assert [score.value for score in found.values()] == [score.value for score in batched.values()]
    (measured,) = run(loaded, Entry("segmentation", str(folder)))
    assert (measured.error, len(measured.records)) == (None, 6)
    assert measured.records[0].map == "attention"


def test_unusable_label_maps_are_left_out_and_reported(loaded, tmp_path) -> None:
    bad = [
        (png(np.full((24, 40), 4, np.uint8)), "has class 4 in its segmentation, and classnames.txt has 3"),
        (png(np.zeros((24, 40), np.uint8)), "has no labeled pixel"),
        (png(noise(0, 40, 24)), "in color or with transparency"),
        (png(labels(0, 24, 40)), "another shape than its image's"),
        (b"no PNG", "no PNG"),
    ]
    samples = [sample(0), sample(1), *(sample(i) | {"seg.png": mask} for i, (mask, _) in enumerate(bad))]
    files = {"classnames.txt": "\n".join(CLASSES), "zeroshot_classification_templates.txt": "a {c}"}
    folder = write_masked(tmp_path / "set", samples, files)
    data = open_set(folder, "test", kind="segmentation")
    assert scores_of(loaded, data)["attention", "mean_iou"].count == 2
    assert len(data.faults) == len(bad)
    for fault, (_, words) in zip(data.faults, bad, strict=True):
        assert words in str(fault)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no classnames.txt: segmentation needs one"),
        ({"classnames.txt": "\n".join(map(str, range(300)))}, "300 classes: .seg.png holds up to 254"),
        ({"classnames.txt": "a\nb"}, "no image of .* has labels"),
    ],
)
def test_sets_without_usable_classes_or_labels_are_refused(loaded, tmp_path, files, words) -> None:
    empty = {"seg.png": png(np.zeros((24, 40), np.uint8))}
    write_masked(tmp_path / "set", [sample(0) | empty, sample(1) | empty], files)
    with pytest.raises(InputError, match=words):
        scores_of(loaded, open_set(tmp_path / "set", "test", kind="segmentation"))


def test_scenes_label_each_pixel_with_its_shape(tmp_path) -> None:
    drawn = DrawnSet("segmentation", "segmentation", "test", "plain", 3)
    write_shard(tmp_path / "segmentation" / "test" / "0.tar", drawn, 32, 0, 0, range(3))
    (tmp_path / "segmentation" / "classnames.txt").write_text("\n".join(SHAPES))
    data = open_set(tmp_path / "segmentation", "test")
    assert data.kind == "segmentation"
    for index in range(3):
        classes = classes_at(data, index)
        scene = draw_scene(index, split="test", size=32)
        for thing in scene.objects:
            hidden = scene.index_mask != scene.objects.index(thing) + 1
            assert set(classes[thing.mask & ~hidden]) == {SHAPES.index(thing.shape)}
        assert (classes[scene.index_mask == 0] == NOT_LABELED).all()

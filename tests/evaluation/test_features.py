import copy
import io
import tarfile

import numpy as np
import pytest
import torch
from class_sets import write_class_set
from made_sets import write_dtd, write_picture
from torch import nn

import diffclip
from diffclip.data.evaluation_sets import open_set
from diffclip.data.transforms import eval_transform
from diffclip.errors import InputError
from diffclip.evaluation.features import FeatureReader, Features, digest_of


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "diffclip" / "features"


@pytest.fixture(scope="module")
def model():
    config = diffclip.CLIPConfig(
        embed_dim=8,
        vision=diffclip.VisionConfig(
            image_size=16, patch_size=8, width=16, layers=1, heads=2, attention="differential"
        ),
        text=diffclip.TextConfig(context_length=8, width=16, layers=1, heads=2),
    )
    return diffclip.CLIP(config, seed=0).eval()


@pytest.fixture
def folder(tmp_path):
    return write_class_set(tmp_path / "set", {"train": [0, 1, 2, 1, 0], "test": [2, 1]}, 3)


def reader(model, **options):
    transform = eval_transform(model.config.vision.image_size, model.config.preprocess)
    return FeatureReader(model, transform, **options)


@pytest.fixture
def passes(model):
    """The sizes of the batches that the tower has seen."""
    seen = []
    hook = model.visual.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    yield seen
    hook.remove()


def test_they_are_the_towers_before_the_projection(model, folder):
    features = reader(model, batch_size=2).read(open_set(folder, "train"))
    transform = eval_transform(16, model.config.preprocess)
    (batch,) = open_set(folder, "train").batches(transform, 8)
    with torch.no_grad():
        wanted = model.visual(batch.images)
    assert features.where == "set/train"
    assert features.labels.tolist() == [0, 1, 2, 1, 0]
    assert features.values.shape == (5, 16)
    torch.testing.assert_close(features.values, wanted)
    torch.testing.assert_close(
        features.values @ model.image_projection.detach(), model.encode_image(batch.images)
    )


def test_they_are_computed_once(model, folder, passes, cache):
    first = reader(model, batch_size=2).read(open_set(folder, "train"))
    assert passes == [2, 2, 1]
    second = reader(model).read(open_set(folder, "train"))
    assert passes == [2, 2, 1]
    assert torch.equal(first.values, second.values)
    assert torch.equal(first.labels, second.labels)
    reader(model).read(open_set(folder, "test"))
    assert passes == [2, 2, 1, 2]
    assert len(list(cache.iterdir())) == 2
    assert (first.values * torch.ones(1, requires_grad=True)).requires_grad  # no tensor of inference mode


def test_the_same_weights_elsewhere_are_the_same(model, folder, tmp_path, passes):
    reader(model).read(open_set(folder, "train"))
    diffclip.save_weights(model, tmp_path / "copy")
    other, preprocess, _ = diffclip.load(tmp_path / "copy")
    other.visual.register_forward_hook(lambda *_: pytest.fail("computed again"))
    FeatureReader(other, preprocess).read(open_set(folder, "train"))


def test_anything_else_is_computed_again(model, folder, passes, tmp_path):
    wanted = 1
    reader(model).read(open_set(folder, "train"))
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.visual.blocks[0].mlp.fc1.bias[0] += 1e-3
    other_lambda = copy.deepcopy(model)
    other_lambda.config.lambda_init = "dynamic"
    ablation = copy.deepcopy(model)
    ablation.config.differential.factor = False
    bicubic = copy.deepcopy(model)
    bicubic.config.preprocess.interpolation = "bicubic"
    for other in (changed, other_lambda, ablation, bicubic):
        reader(other).read(open_set(folder, "train"))
        wanted += 1
        assert len(passes) == wanted  # a copied model has the hook too
    # the same number of pictures, others
    (folder / "train" / "0.tar").unlink()
    (folder / "train").joinpath("nshards.txt").unlink()
    (folder / "train").rmdir()
    write_class_set(folder, {"test2": [1], "train": [0, 1, 2, 1, 0]}, 3)
    reader(model).read(open_set(folder, "train"))
    assert len(passes) == wanted + 1


def test_class_names_and_prompts_are_no_part_of_it(model, folder, passes):
    reader(model).read(open_set(folder, "train"))
    (folder / "classnames.txt").write_text("one\ntwo\nthree\n")
    reader(model).read(open_set(folder, "train"))
    assert passes == [5]


def test_a_set_of_files_is_computed_once_and_again_when_one_changes(model, tmp_path, passes):
    write_dtd(tmp_path / "dtd")
    for _ in range(2):
        features = reader(model).read(open_set("dtd", "train", tmp_path))
    assert features.labels.tolist() == [1, 0]
    assert passes == [2]
    write_picture(tmp_path / "dtd/dtd/dtd/images/banded/banded_train.jpg", 99)
    reader(model).read(open_set("dtd", "train", tmp_path))
    assert passes == [2, 2]


def test_another_transform_is_not_kept(model, folder, passes, cache):
    transform = eval_transform(16, model.config.preprocess)
    for _ in range(2):
        FeatureReader(model, lambda picture: transform(picture)).read(open_set(folder, "train"))
    assert len(passes) == 2
    assert not cache.exists()


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "other"])
def test_a_damaged_file_is_computed_again(model, folder, passes, cache, damage):
    first = reader(model).read(open_set(folder, "train"))
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    middle = whole.index(b"values.npy") + 200
    if damage == "other":
        np.savez(file, stamp=np.array("x"), values=np.zeros(3))
    else:
        flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
        file.write_bytes({"cut": whole[:middle], "flipped": flipped, "empty": b"", "text": b"hello"}[damage])
    again = reader(model).read(open_set(folder, "train"))
    assert len(passes) == 2
    assert torch.equal(first.values, again.values)
    assert file.read_bytes() == whole


def test_a_cache_that_cannot_be_written_costs_nothing_else(model, folder, cache):
    cache.parent.mkdir(parents=True)
    cache.write_text("in the way")
    assert len(reader(model).read(open_set(folder, "train")).labels) == 5


def test_broken_pictures_are_left_out_and_told_each_time(model, folder, passes):
    with tarfile.open(folder / "train" / "0.tar", "a") as tar:
        for name in ("s0000009.png", "s0000009.cls"):
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"1"))
    for _ in range(2):
        data = open_set(folder, "train")
        features = reader(model).read(data)
        assert features.labels.tolist() == [0, 1, 2, 1, 0]
        (fault,) = data.faults
        assert "s0000009" in str(fault)
    assert len(passes) == 1


def test_features_that_are_not_numbers(model, folder, cache):
    broken = copy.deepcopy(model)
    nn.init.constant_(broken.visual.norm.weight, float("nan"))
    with pytest.raises(InputError, match=r"set/train: the features of 5 of 5 pictures are not finite"):
        reader(broken).read(open_set(folder, "train"))
    assert not cache.exists()


def test_shapes_and_labels_are_checked():
    with pytest.raises(InputError, match="not \\[N, D\\] and \\[N\\]"):
        Features("x", torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(InputError, match="x: features"):
        Features("x", torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(InputError, match="x: labels run from -1 to 1, but there are 2 classes"):
        Features("x", torch.zeros(2, 2), torch.tensor([-1, 1])).check_classes(2)


def test_the_digest_is_of_the_content():
    first, same = nn.Linear(2, 2), nn.Linear(2, 2)
    same.load_state_dict(first.state_dict())
    assert digest_of(first) == digest_of(same)
    assert digest_of(first) != digest_of(copy.deepcopy(first).bfloat16())
    with torch.no_grad():
        same.bias[0] += 1
    assert digest_of(first) != digest_of(same)

"""`diffclip.evaluate` on folders and on datasets of one's own."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import WORDED
from torch.utils.data import Dataset
from torchvision.transforms import v2

import diffclip
from diffclip import CLIP, InputError
from diffclip.config import variant_config
from diffclip.data.open_set import open_set


class Items(Dataset):
    """The images of a set, each as another type, with an answer."""

    def __init__(self, data, answers) -> None:
        self.data, self.answers = data, answers

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int):
        image = np.array(self.data.source.image(self.data.indices[i]))
        kinds = (
            image,
            torch.from_numpy(image).permute(2, 0, 1),
            self.data.source.image(self.data.indices[i]),
        )
        return kinds[i % 3], self.answers[i]


@pytest.fixture(scope="module")
def model() -> CLIP:
    return CLIP(variant_config("DiffCLIP", WORDED), seed=0)


def values(records) -> dict[str, float]:
    return {record.metric: record.value for record in records}


def test_a_dataset_gets_the_numbers_of_the_folder_with_its_images(model, scenes) -> None:
    colors, captions = open_set(scenes / "colours", "test"), open_set(scenes / "captions", "test")
    names, templates = colors.classnames, colors.templates
    own = diffclip.evaluate(model, None, Items(colors, colors.labels), classnames=names, templates=templates)
    assert values(own) == values(diffclip.evaluate(model, "zero-shot", scenes / "colours"))
    assert (own[0].dataset, own[0].model, own[0].count) == (
        "dataset",
        "DiffCLIP-v32x2x4p8-t32x1x2",
        len(colors),
    )
    retrieval = diffclip.evaluate(model, None, Items(captions, captions.captions), name="mine")
    assert values(retrieval) == values(diffclip.evaluate(model, None, scenes / "captions"))
    assert retrieval[0].dataset == "mine"


def test_what_cannot_be_measured_is_refused_in_a_line(model, scenes) -> None:
    colors = open_set(scenes / "colours", "test")
    for data, message in (
        (Items(colors, colors.labels), "class names are known: give classnames"),
        ([(np.zeros((4, 4, 3), np.float32), "a")] * 3, "is float32 .*: give a PIL image"),
        ([(1,)], r"dataset\[0\] cannot be read .*: give \(image, captions\)"),
        ([], "is empty"),
        (iter([]), r"dataset \(list_iterator\) has no length .*: give a map-style dataset"),
    ):
        with pytest.raises(InputError, match=message):
            diffclip.evaluate(model, None, data)
    with pytest.raises(InputError, match="few-shot cannot use"):
        diffclip.evaluate(model, "few-shot", [(np.zeros((4, 4, 3), np.uint8), "a")] * 3)
    with pytest.raises(InputError, match="unknown task 'zeroshot': did you mean 'zero-shot'"):
        diffclip.evaluate(model, "zeroshot", colors)
    with pytest.raises(
        InputError, match=r"the model is a list: give a model's name, a CLIP, or \(model, pre"
    ):
        diffclip.evaluate([model], "zero-shot", colors)
    plain = SimpleNamespace(encode_image=len)
    with pytest.raises(
        InputError, match="SimpleNamespace is no torch module with encode_image and parameters"
    ):
        diffclip.evaluate((plain, None, None), "zero-shot", colors)


def test_a_module_of_ones_own_is_measured(scenes) -> None:
    class Mean(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = torch.nn.Parameter(torch.ones(3))

        def encode_image(self, images):
            return images.mean((2, 3)) * self.gain

    prepare = v2.Compose(
        [
            v2.Resize((8, 8)),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.5,) * 3, (0.5,) * 3),
        ]
    )
    items = [(np.full((8, 8, 3), 20 * i, np.uint8), i % 2) for i in range(12)]
    own = (Mean(), prepare, None)
    records = diffclip.evaluate(own, "linear-probe", items, classnames=["dark", "light"], train=items)
    assert records[0].model == "Mean"
    with pytest.raises(InputError, match="Mean has no texts"):
        diffclip.evaluate((Mean(), prepare, None), "zero-shot", scenes / "colours")

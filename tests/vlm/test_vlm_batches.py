"""Items and batches as a Trainer gets them."""

from __future__ import annotations

import pickle

import pytest
import torch
from PIL import Image
from qwen_like import make_processor, make_tokenizer
from torch.utils.data import DataLoader

from diffclip.errors import InputError
from diffclip.vlm.batches import Collator, ConversationSet
from diffclip.vlm.chat import IGNORED, encode
from diffclip.vlm.conversations import Conversation, Turn


@pytest.fixture(scope="module")
def processor():
    return make_processor(make_tokenizer())


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """A red picture, text alone, a blue picture, and a file that is none."""
    folder = tmp_path_factory.mktemp("pictures")
    Image.new("RGB", (24, 20), (255, 0, 0)).save(folder / "red.png")
    Image.new("L", (16, 30), 255).save(folder / "white.png")
    (folder / "broken.png").write_bytes(b"no picture")
    turns = (Turn("Is it red?", "Yes"),)
    return [
        Conversation("0", folder / "red.png", turns),
        Conversation("1", None, (Turn("Is it?", "No"),), 1),
        Conversation("2", folder / "white.png", (*turns, Turn("And two?", "No, there are two.")), 2),
        Conversation("3", folder / "broken.png", turns, 3),
    ]


def test_items(processor, samples):
    items = ConversationSet(samples, processor, "chat", 2048)
    assert len(items) == 4
    first, second = items[0], items[1]
    expected = encode(samples[0], processor, "chat", 2048)
    assert (first["input_ids"], first["labels"]) == (expected.input_ids, expected.labels)
    assert first["pixel_values"].shape == (3, 16, 16)
    assert first["pixel_values"].dtype == torch.float32
    assert first["pixel_values"][0].min() > 1.9  # red in CLIP's statistics
    assert set(second) == {"input_ids", "labels"}
    assert torch.equal(items[0]["pixel_values"], first["pixel_values"])


def test_batch_is_padded_on_the_right(processor, samples):
    items = ConversationSet(samples, processor, "chat", 2048)
    rows = [items[index] for index in (1, 2, 0)]
    batch = Collator(processor)(rows)
    longest = max(len(row["input_ids"]) for row in rows)
    assert {name: tuple(value.shape) for name, value in batch.items()} == {
        "input_ids": (3, longest),
        "attention_mask": (3, longest),
        "labels": (3, longest),
        "pixel_values": (2, 3, 16, 16),
    }
    for row, item in enumerate(rows):
        length = len(item["input_ids"])
        rest = longest - length
        assert (
            batch["input_ids"][row].tolist() == item["input_ids"] + [processor.tokenizer.pad_token_id] * rest
        )
        assert batch["labels"][row].tolist() == item["labels"] + [IGNORED] * rest
        assert batch["attention_mask"][row].tolist() == [1] * length + [0] * rest
    # in the samples' order: white, then red
    assert [float(picture.min()) > 0 for picture in batch["pixel_values"]] == [True, False]
    assert "pixel_values" not in Collator(processor)([items[1]])


def test_workers_give_the_same_and_their_errors_stay_one_line(processor, samples):
    items = pickle.loads(pickle.dumps(ConversationSet(samples, processor, "plain", 2048)))
    collator = pickle.loads(pickle.dumps(Collator(processor)))
    loader = DataLoader(items, batch_sampler=[[0], [0, 3], [1]], collate_fn=collator, num_workers=1)
    batches = iter(loader)
    alone = collator([items[0]])
    assert all(torch.equal(value, alone[name]) for name, value in next(batches).items())
    with pytest.raises(InputError) as raised:
        next(batches)
    assert str(raised.value).startswith(f"{samples[3].name}: {samples[3].picture} is not a picture")
    with pytest.raises(InputError) as same:
        items[3]
    assert str(same.value) == str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match=r"^, sample \[1\] \(id 1\): the template 'plain' takes one answer"):
        next(batches)

"""Errors have a line for people, and its parts for code."""

import pickle

import pytest

from diffclip.config import parse_config
from diffclip.data.images import read_image
from diffclip.errors import DiffCLIPError, Fault, InputError, sample_fault


def test_an_error_keeps_its_parts_also_between_processes() -> None:
    error = pickle.loads(pickle.dumps(InputError("a.jpg", "is empty", "replace it")))
    assert str(error) == "a.jpg is empty: replace it"
    assert (error.name, error.reason, error.advice) == ("a.jpg", "is empty", "replace it")
    assert str(DiffCLIPError("a whole line")) == "a whole line"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"preprocess": {"resize": "x"}}, "preprocess.resize: 'x' is not a whole number, or choose 'squash'"),
        ({"lambda_init": "dynamc"}, "lambda_init: 'dynamc' is not a number, or choose 'dynamic'"),
    ],
)
def test_the_types_that_a_field_may_have_are_named_together(fields: dict, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_config(fields, "config.json")
    assert str(caught.value) == f"config.json: {words}"


def test_a_fault_names_its_sample_once() -> None:
    with pytest.raises(InputError) as caught:
        read_image(b"", "0.tar:cat")
    assert sample_fault("0.tar:cat", caught.value) == Fault(
        "0.tar:cat", "is empty (0 bytes): replace it with an image"
    )
    assert str(sample_fault("0.tar:cat", OSError("gone"))) == "0.tar:cat cannot be read (gone)"

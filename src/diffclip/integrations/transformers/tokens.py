"""Write the core's tokenizer as a `tokenizer.json`, for transformers or the tokenizers library alone.

Merges and ids are those of open_clip. A normalizer repeats its cleaning, except for the steps of ftfy that need the
whole text (mojibake, full-width letters, unusual HTML entities).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from diffclip.config import VOCABULARY, CLIPConfig
from diffclip.errors import InputError

START, END = "<start_of_text>", "<end_of_text>"
# The id 0 pads, and is also a `!` inside a word. As a special token `!` would be cut out of texts before anything
# else, so the vocabulary calls it by its byte, the name under which the model looks for characters that it lacks.
PAD = "<0x21>"

_LETTERS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_CONTROL = r"[\x00-\x08\x0b\x0e-\x1f\x7f\x{206a}-\x{206f}\x{feff}\x{fff9}-\x{fffc}]"
_ENTITIES = {
    "&lt;": "<",
    "&gt;": ">",
    "&quot;": '"',
    "&#34;": '"',
    "&#39;": "'",
    "&apos;": "'",
    "&nbsp;": " ",
}
_QUOTES = {r"[\x{2018}-\x{201b}\x{02bc}]": "'", r"[\x{201c}-\x{201f}]": '"'}
_LIGATURES = {"ﬀ": "ff", "ﬁ": "fi", "ﬂ": "fl", "ﬃ": "ffi", "ﬄ": "ffl"}


def tokenizer_of(config: CLIPConfig) -> Any:
    """Make transformers' fast tokenizer with the ids of this model.

    Rows are those of ours with `padding="max_length", truncation=True`.

    Raises:
        InputError: the model's vocabulary is smaller than the tokenizer's.
    """
    from transformers import PreTrainedTokenizerFast

    if config.text.vocab_size < VOCABULARY:
        raise InputError(
            f"the vocabulary of {config.text.vocab_size} is smaller than the tokenizer's {VOCABULARY}"
        )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=_backend(),
        bos_token=START,
        eos_token=END,
        pad_token=PAD,
        model_max_length=config.text.context_length,
        model_input_names=["input_ids", "attention_mask"],
        padding_side="right",
        truncation_side="right",
        clean_up_tokenization_spaces=False,
    )


@cache
def _backend() -> Any:
    # open_clip takes seconds to import
    from open_clip.tokenizer import SimpleTokenizer
    from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
    from tokenizers.models import BPE

    bpe = SimpleTokenizer()
    vocabulary = {_renamed(token): number for token, number in bpe.encoder.items()}
    merges = [(_renamed(first), _renamed(second)) for first, second in bpe.bpe_ranks]
    made = Tokenizer(BPE(vocabulary, merges, end_of_word_suffix="</w>", byte_fallback=True))
    # an entity may be written twice over, and the ampersand comes last each time
    entities = 2 * [*_ENTITIES.items(), ("&amp;", "&")]
    made.normalizer = normalizers.Sequence(
        [
            *(normalizers.Replace(written, meant) for written, meant in entities),
            *(normalizers.Replace(written, meant) for written, meant in _LIGATURES.items()),
            *(normalizers.Replace(Regex(written), meant) for written, meant in _QUOTES.items()),
            normalizers.Replace(Regex(_CONTROL), ""),
            normalizers.NFC(),
            normalizers.Lowercase(),
        ]
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LETTERS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}",
        special_tokens=[(START, vocabulary[START]), (END, vocabulary[END])],
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace(PAD, "!"),
            decoders.ByteLevel(),
            decoders.Replace("</w>", " "),
            decoders.Strip(" ", 0, 1),
        ]
    )
    return made


def _renamed(token: str) -> str:
    """Replace each `!` inside a word by PAD; a `!` that ends it is a character with an id of its own."""
    word = token.removesuffix("</w>")
    end = word[-1:] if token != word else ""
    return word[: len(word) - len(end)].replace("!", PAD) + end + token[len(word) :]

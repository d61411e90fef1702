"""What a language model reads of a conversation, and which of its tokens it learns: answers, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

from diffclip.errors import InputError, unknown
from diffclip.vlm.conversations import IMAGE, Conversation

Template = Literal["plain", "chat"]
TEMPLATES: tuple[Template, ...] = ("plain", "chat")
# What the loss passes over, as everywhere in torch and transformers.
IGNORED = -100

_START, _END = "<|im_start|>", "<|im_end|>"
_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")

# Qwen2-Instruct's template (ChatML; its system line "You are a helpful assistant." where the messages have none), with
# marks around what the assistant writes, up to and with the token that ends it. A content may be a text or a list of
# parts, as transformers' pipelines write them; `<image>` stands for the tokenizer's own image token.
CHAT_TEMPLATE = (
    "{% macro written(content) %}"
    "{% if content is string %}{{ content }}{% else %}{% for part in content %}"
    "{% if part['type'] == 'image' %}{{ '<image>\\n' }}{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{% endmacro %}"
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ written(message['content']) + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}"
    "{{ written(message['content']) + '<|im_end|>' }}"
    "{% endif %}"
    "{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class Encoded(NamedTuple):
    """Token ids of one sample and, for each, the id that is learnt there or `IGNORED`."""

    input_ids: list[int]
    labels: list[int]
    picture: Path | None


def chat_template(processor: Any) -> str:
    """The template of `processor`'s language model: its own where it marks answers by `{% generation %}`, else
    `CHAT_TEMPLATE` where the tokenizer has ChatML's tokens.

    `CHAT_TEMPLATE` begins with Qwen2's system line, "You are a helpful assistant." Qwen2.5's own template, which has no
    marks and so gives way, names its maker there; LLaVA and TinyLLaVA write Vicuna's line.

    Raises:
        InputError: neither can be, or the tokenizer is a slow one, whose tokens cannot be traced to the text.
    """
    tokenizer = processor.tokenizer
    if not tokenizer.is_fast:
        raise InputError(
            f"the tokenizer of {tokenizer.name_or_path or 'the language model'} is written in Python and cannot tell "
            "which text its tokens come from: save it as tokenizer.json, or choose another language model"
        )
    for own in (tokenizer.chat_template, processor.chat_template):
        if isinstance(own, dict):  # several under names
            own = own.get("default")
        if own and _MARK.search(own):
            return str(own)
    # among the added ones: elsewhere in the vocabulary no text would come to them
    if {_START, _END} <= tokenizer.added_tokens_encoder.keys():
        return CHAT_TEMPLATE.replace(IMAGE, processor.image_token)
    raise InputError(
        f"the tokenizer of {tokenizer.name_or_path or 'the language model'} has neither the tokens {_START} and {_END} "
        "nor a chat template that marks answers: put {% generation %} and {% endgeneration %} around them in its "
        "chat_template.jinja, or choose another language model"
    )


def image_tokens(processor: Any) -> int:
    """How many tokens a picture takes: its patches, without the class token."""
    images = processor.image_processor
    size = images.crop_size if getattr(images, "do_center_crop", False) else images.size
    patches = (size["height"] // processor.patch_size) * (size["width"] // processor.patch_size)
    dropped = 1 if processor.vision_feature_select_strategy == "default" else 0
    return int(patches + processor.num_additional_image_tokens - dropped)


def prompt(processor: Any, question: str, picture: bool) -> str:
    """What stands before the answer to `question`, word for word as `encode` writes it with the template "chat".

    It holds one image token for the picture, which the processor multiplies: call it with `add_special_tokens=False`.
    """
    template = chat_template(processor)
    question = _harmless(question.strip(), _special(processor, template))
    text: str = processor.tokenizer.apply_chat_template(
        [{"role": "user", "content": _shown(question, processor.image_token if picture else "")}],
        chat_template=template,
        add_generation_prompt=True,
        tokenize=False,
    )
    return text


def encode(conversation: Conversation, processor: Any, template: Template, max_length: int) -> Encoded:
    """The tokens of `conversation`, cut after `max_length`, and as labels its answers with what ends each of them.

    "chat" is `chat_template`, the picture before the first question and a line break between them, as in LLaVA. "plain"
    is LLaVA's first stage: the picture, the answer and a line break; the question is dropped.

    Text of people never makes special tokens: where it spells one, as "<|im_end|>", a space goes after the first
    letter ("< |im_end|>").

    Raises:
        InputError: naming the sample, where no answer is left after `max_length`, where the labels would not be the
            answers, or where "plain" meets anything but one answer about a picture; unknown template.
    """
    if template == "plain":
        ids, labels = _plain(conversation, processor)
    elif template == "chat":
        ids, labels = _chat(conversation, processor)
    else:
        raise unknown("template", template, TEMPLATES)
    expected = image_tokens(processor) if conversation.picture is not None else 0
    if ids.count(processor.image_token_id) != expected:
        raise _unmasked(conversation, f"{ids.count(processor.image_token_id)} image tokens, not {expected}")
    if all(label == IGNORED for label in labels[:max_length]):
        raise InputError(
            f"{conversation.name}: its first answer begins after max_length {max_length} of {len(ids)} tokens: raise "
            "max_length, or leave the sample out"
        )
    return Encoded(ids[:max_length], labels[:max_length], conversation.picture)


def _plain(conversation: Conversation, processor: Any) -> tuple[list[int], list[int]]:
    if conversation.picture is None or len(conversation.turns) != 1:
        raise InputError(
            f"{conversation.name}: the template 'plain' takes one answer about a picture: leave the sample out, or use "
            "the template 'chat'"
        )
    tokenizer = processor.tokenizer
    before = [processor.image_token_id] * image_tokens(processor)
    # what the tokenizer of Llama, say, begins every text with
    if tokenizer.bos_token_id is not None and tokenizer("").input_ids[:1] == [tokenizer.bos_token_id]:
        before.insert(0, tokenizer.bos_token_id)
    text = _harmless(conversation.turns[0].answer, _special(processor, CHAT_TEMPLATE))
    answer = _ids(tokenizer, text + "\n")
    _check_answer(conversation, tokenizer, answer, text)
    return before + answer, [IGNORED] * len(before) + answer


def _chat(conversation: Conversation, processor: Any) -> tuple[list[int], list[int]]:
    tokenizer, template = processor.tokenizer, chat_template(processor)
    special = _special(processor, template)
    picture = "" if conversation.picture is None else processor.image_token * image_tokens(processor)
    messages: list[dict[str, str]] = []
    answers: list[str] = []
    for question, answer in conversation.turns:
        answers.append(_harmless(answer, special))
        asked = _shown(_harmless(question, special), "" if messages else picture)
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answers[-1]}]
    try:
        written = tokenizer.apply_chat_template(
            messages,
            chat_template=template,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
            tokenizer_kwargs={"verbose": False},  # what is too long for the model is cut by us
        )
    # A template is a program of somebody's: it may refuse messages, or put marks around nothing.
    except Exception as error:
        raise _unmasked(conversation, " ".join(str(error).split()) or type(error).__name__) from error
    ids: list[int] = written["input_ids"]
    labels = [
        token if learnt else IGNORED for token, learnt in zip(ids, written["assistant_masks"], strict=True)
    ]
    runs = _runs(labels)
    if len(runs) != len(answers):
        raise _unmasked(conversation, f"{len(runs)} marked stretches for {len(answers)} answers")
    for run, answer in zip(runs, answers, strict=True):
        _check_answer(conversation, tokenizer, run, answer)
    return ids, labels


def _shown(question: str, picture: str) -> str:
    return f"{picture}\n{question}".rstrip() if picture else question


def _special(processor: Any, template: str) -> re.Pattern[str]:
    """What a tokenizer, or `template`, takes for more than text."""
    added = processor.tokenizer.added_tokens_decoder.values()
    tokens = {token.content for token in added if token.special or token.content in template}
    tokens.add(processor.image_token)
    longest_first = sorted((token for token in tokens if len(token.strip()) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)))


def _harmless(text: str, special: re.Pattern[str]) -> str:
    while special.search(text):  # again, as tokens may overlap
        text = special.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
    return text


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    return ids


def _runs(labels: list[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    inside = False
    for label in labels:
        if label != IGNORED:
            if not inside:
                runs.append([])
            runs[-1].append(label)
        inside = label != IGNORED
    return runs


def _check_answer(conversation: Conversation, tokenizer: Any, learnt: list[int], answer: str) -> None:
    """Compare by text: beside other text a tokenizer may cut an answer otherwise than alone."""
    found, wanted = (
        tokenizer.decode(ids, clean_up_tokenization_spaces=False).strip()
        for ids in (learnt, _ids(tokenizer, answer))
    )
    if not wanted or not found.startswith(wanted):
        raise _unmasked(conversation, f"labels say {found[:40]!r} where the answer is {answer[:40]!r}")


def _unmasked(conversation: Conversation, reason: str) -> InputError:
    return InputError(
        f"{conversation.name}: its answers cannot be told from the rest ({reason}): leave the sample out, or correct "
        "the tokenizer's chat template"
    )

"""Conversations as tokens: the chat template, labels for answers only, prompts, and generated answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import torch
from PIL import Image

from diffclip.errors import InputError
from diffclip.vlm.conversations import IMAGE, Conversation

Template = Literal["plain", "chat"]
TEMPLATES: dict[int, Template] = {1: "plain", 2: "chat"}  # the template of each stage
IGNORED = -100  # the loss ignores this label, as everywhere in torch and transformers
MAX_NEW_TOKENS = 128
CHAT_TOKENS = ("<|im_start|>", "<|im_end|>")

# Qwen2-Instruct's template (ChatML), with "You are a helpful assistant." if the messages have no system line. The marks
# `generation` enclose each answer and the token that ends it. A content is a text, or a list of parts as in
# transformers' pipelines. `<image>` stands for the tokenizer's own image token. Qwen2.5's template has no marks, and
# its system line names its maker. LLaVA and TinyLLaVA write Vicuna's system line.
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

# stage 1: the image, the answer and a line break
PLAIN_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ message['content'] }}"
    "{% else %}{% generation %}{{ message['content'] + '\\n' }}{% endgeneration %}{% endif %}{% endfor %}"
)


def chat_template(processor: Any) -> str:
    """Return `CHAT_TEMPLATE` with the processor's own image token."""
    return CHAT_TEMPLATE.replace(IMAGE, processor.image_token)


def image_tokens(processor: Any) -> int:
    """Count the tokens of an image: its patches, without the class token."""
    images = processor.image_processor
    size = images.crop_size if getattr(images, "do_center_crop", False) else images.size
    return int((size["height"] // processor.patch_size) * (size["width"] // processor.patch_size))


def prompt(processor: Any, question: str, has_image: bool) -> str:
    """Write the text before the answer to `question`, word for word as `encode` does with the template "chat".

    An image is one token of the text. The processor repeats it; call the processor with `add_special_tokens=False`.
    """
    template = chat_template(processor)
    question = _escape(question.strip(), _special_tokens(processor, template))
    return processor.tokenizer.apply_chat_template(
        [{"role": "user", "content": _with_image(question, processor.image_token if has_image else "")}],
        chat_template=template,
        add_generation_prompt=True,
        tokenize=False,
    )


def answer(
    model: Any,
    processor: Any,
    images: Sequence[Image.Image | None],
    questions: Sequence[str],
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> list[str]:
    """Answer each question about its image (None: without one), with greedy decoding in one batch.

    `model` and `processor` are from `connect` or `load_vlm`. Answers have no special tokens and surrounding spaces. Up
    to rounding, an answer does not depend on the other questions of the batch (shorter prompts are padded on the left).
    """
    pairs = zip(questions, images, strict=True)
    prompts = [prompt(processor, question, image is not None) for question, image in pairs]
    rgb_images = [image.convert("RGB") for image in images if image is not None]
    with torch.inference_mode():
        inputs = processor(
            images=rgb_images or None,
            text=prompts,
            padding=True,
            padding_side="left",
            add_special_tokens=False,
            return_tensors="pt",
        ).to(model.device, dtype=model.dtype)
        tokens = model.generate(**inputs, do_sample=False, max_new_tokens=max_new_tokens)
    new = tokens[:, inputs["input_ids"].shape[1] :]
    return [text.strip() for text in processor.batch_decode(new, skip_special_tokens=True)]


def encode(
    conversation: Conversation, processor: Any, template: Template, max_length: int
) -> tuple[list[int], list[int]]:
    """Tokenize `conversation`, cut after `max_length` tokens.

    "chat" is `chat_template`: the image comes before the first question, with a line break between them, as in LLaVA.
    "plain" is LLaVA's first stage: the image, the answer and a line break; the question is dropped.

    Text from people never becomes special tokens: a text such as "<|im_end|>" gets a space after its first letter
    ("< |im_end|>").

    Returns:
        Token ids and labels. The label is the token id for the tokens of answers and their end tokens, else `IGNORED`.

    Raises:
        InputError: no answer begins within `max_length`, or "plain" is given anything but one answer about an image.
            The message names the sample.
    """
    is_plain, turns = template == "plain", conversation.turns
    if is_plain and (conversation.image is None or len(turns) != 1):
        raise InputError(
            f"{conversation.name}: the template 'plain' takes one answer about an image: leave the sample out, or use "
            "the template 'chat'"
        )
    tokenizer, text = processor.tokenizer, PLAIN_TEMPLATE if is_plain else chat_template(processor)
    special = _special_tokens(processor, text)
    image = "" if conversation.image is None else processor.image_token * image_tokens(processor)
    questions = ["" if is_plain else _escape(turn.question, special) for turn in turns]
    questions[0] = image if is_plain else _with_image(questions[0], image)
    messages = []
    for question, turn in zip(questions, turns, strict=True):
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": _escape(turn.answer, special)})
    written = tokenizer.apply_chat_template(
        messages,
        chat_template=text,
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
        tokenizer_kwargs={"verbose": False},  # no warning about long samples: they are cut below
    )
    ids, mask = written["input_ids"], written["assistant_masks"]
    if not any(mask[:max_length]):
        raise InputError(
            f"{conversation.name}: its first answer begins after max_length {max_length} of {len(ids)} tokens: raise "
            "max_length, or leave the sample out"
        )
    labels = [token if is_learned else IGNORED for token, is_learned in zip(ids, mask, strict=True)]
    return ids[:max_length], labels[:max_length]


def _with_image(question: str, image: str) -> str:
    return f"{image}\n{question}".rstrip() if image else question


def _special_tokens(processor: Any, template: str) -> re.Pattern[str]:
    """Match the strings that the tokenizer or `template` reads as special tokens, not as text."""
    added = processor.tokenizer.added_tokens_decoder.values()
    tokens = {token.content for token in added if token.special or token.content in template}
    tokens.add(processor.image_token)
    longest_first = sorted((token for token in tokens if len(token.strip()) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)))


def _escape(text: str, special: re.Pattern[str]) -> str:
    while special.search(text):  # repeat, because tokens may overlap
        text = special.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
    return text

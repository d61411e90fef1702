"""A small language model of Qwen2's architecture that has only read about scenes, made and trained in minutes.

It learns in text what it is to do with pictures: a description of a scene stands where the patches will stand, and
questions follow. Which words a question shares with what stands before it is learnt with far fewer steps in text than
with pictures, and once for all vision towers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from diffclip.files import write_atomically
from diffclip.scenes.captions import write_captions
from diffclip.scenes.layout import Dice, Spec, lay_out, stream
from diffclip.vlm.chat import CHAT_TEMPLATE, IGNORED
from diffclip.vlm.conversations import IMAGE, Turn
from diffclip.vlm.folders import quiet
from diffclip.vlm.scene_talk import SORTS, Frequencies, colours_of, describe, told, yes_no

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# words and pieces of the byte-level vocabulary; all the words of the scenes are in it whole
_VOCABULARY = 1000
_READ_FOR_WORDS = 1000
_COUNTED = 1000
# the text of scenes that no picture is drawn of, so that what is learnt about a picture is not known from its text
_FIRST_TEXT = 10_000_000
_PLAIN_SHARE = 0.15
_WARM_UP = 50


@dataclass(frozen=True)
class Schooling:
    """The model's size, and how long it learns: `first_steps` of colours alone, `steps` in all.

    Yes/no questions give little to learn from; with shapes and numbers beside them from the first step on, they stay at
    chance many times as long.
    """

    width: int = 128
    layers: int = 3
    heads: int = 4
    first_steps: int = 800
    steps: int = 1600
    batch_size: int = 16
    lr: float = 1e-3


def make_language_model(
    folder: str | Path,
    seed: int = 0,
    schooling: Schooling | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Train a language model and its tokenizer on the text of scenes, and save both to a new `folder`.

    The folder is one of transformers, whole or not at all. The tokenizer has ChatML's tokens and `<image>`.

    Args:
        seed: of the scenes, the starting values and the order.
        schooling: None: the sizes of the demonstration, about three minutes on 2 CPU cores.
        say: told the loss ten times.

    Raises:
        InputError: the folder cannot be written.
    """
    schooling = schooling or Schooling()
    tokenizer = make_tokenizer(seed)
    model = _untrained(tokenizer, schooling, seed)
    _train(model, tokenizer, schooling, seed, say)
    with write_atomically(folder) as temporary, quiet():
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)


def make_tokenizer(seed: int = 0) -> Any:
    """A byte-level BPE of the words that scenes are talked about in."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[END_OF_TEXT, START, END, IMAGE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_words(seed), trainer)
    kind: Any = PreTrainedTokenizerFast
    fast = kind(tokenizer_object=tokenizer, eos_token=END, pad_token=END_OF_TEXT)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _words(seed: int) -> Iterator[str]:
    often = _frequencies(seed)
    yield "system\nYou are a helpful assistant.\nuser\nassistant\n"
    for index in range(_READ_FOR_WORDS):
        specs, background, dice = _scene(index, seed)
        yield from write_captions(specs, background, dice)
        for turn in [*yes_no(specs, dice.pick(SORTS), often, dice), told(specs, dice)]:
            # alone: without the letters that a space before it would add
            yield turn.question
            yield turn.answer


def _scene(index: int, seed: int) -> tuple[list[Spec], str, Dice]:
    dice = Dice(stream("scene", "train", seed, _FIRST_TEXT + index))
    background, specs = lay_out(dice, 1 + index % 4, None)
    return specs, background, dice


@lru_cache(maxsize=1)
def _frequencies(seed: int) -> Frequencies:
    return Frequencies(_scene(index, seed)[0] for index in range(_COUNTED))


def _untrained(tokenizer: Any, schooling: Schooling, seed: int) -> Any:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=schooling.width,
        num_hidden_layers=schooling.layers,
        num_attention_heads=schooling.heads,
        num_key_value_heads=schooling.heads,
        intermediate_size=3 * schooling.width,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        # narrow layers that start at the usual 0.02 leave chance later
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def _train(model: Any, tokenizer: Any, schooling: Schooling, seed: int, say: Callable[[str], None]) -> None:
    lessons = _Lessons(tokenizer, schooling, seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=schooling.lr, betas=(0.9, 0.98), weight_decay=0.01)
    steps, losses = schooling.steps, []
    model.train()
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = schooling.lr * min(1, (step + 1) / _WARM_UP, 5 * (1 - step / steps))
        ids, mask, labels = lessons.batch(step)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids, attention_mask=mask).logits
        loss = F.cross_entropy(
            logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
        )
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
        if (step + 1) * 10 // steps > step * 10 // steps:
            recent = losses[-max(1, steps // 10) :]
            say(f"language model: step {step + 1}/{steps}  loss {sum(recent) / len(recent):.3f}")
    model.eval()


class _Lessons:
    """Batches of text, each scene once."""

    def __init__(self, tokenizer: Any, schooling: Schooling, seed: int) -> None:
        self._tokenizer, self._schooling, self._seed = tokenizer, schooling, seed
        self._often = _frequencies(seed)
        self._known: dict[str, list[int]] = {}

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Token ids, mask and labels, each [B, L], padded on the right."""
        size = self._schooling.batch_size
        early = step < self._schooling.first_steps
        rows = [self._row(index, early) for index in range(step * size, (step + 1) * size)]
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.full((size, longest), self._tokenizer.pad_token_id)
        mask, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORED)
        for number, (own, learnt) in enumerate(rows):
            ids[number, : len(own)] = torch.tensor(own)
            mask[number, : len(own)] = 1
            labels[number, : len(own)] = torch.tensor(learnt)
        return ids, mask, labels

    def _row(self, index: int, early: bool) -> tuple[list[int], list[int]]:
        specs, background, dice = _scene(_READ_FOR_WORDS + index, self._seed)
        if not early and dice.chance(_PLAIN_SHARE):
            first, second, *_ = write_captions(specs, background, dice)
            return self._encode([(first, False), (f"{second}\n", True)])
        turns = yes_no(specs, "colours" if early else dice.pick(SORTS), self._often, dice)
        others = [colours_of(specs)] if early else [told(specs, dice), told(specs, dice)]
        # behind what can be told from the words alone, the yes/no questions are easier; both ways are needed
        turns = [*others, *turns] if dice.chance(0.5) else [*turns, *others]
        return self._encode(chat(describe(specs, dice), turns))

    def _encode(self, pieces: list[tuple[str, bool]]) -> tuple[list[int], list[int]]:
        ids: list[int] = []
        labels: list[int] = []
        for text, learnt in pieces:
            if text not in self._known:
                self._known[text] = self._tokenizer(text, add_special_tokens=False).input_ids
            own = self._known[text]
            ids += own
            labels += own if learnt else [IGNORED] * len(own)
        return ids, labels


def chat(seen: str, turns: list[Turn]) -> list[tuple[str, bool]]:
    """A conversation about `seen` as `CHAT_TEMPLATE` writes it, in pieces that a tokenizer cuts alike alone and
    together, each with whether it is learnt."""
    pieces = [(f"{START}system\nYou are a helpful assistant.{END}\n", False)]
    for number, (question, answer) in enumerate(turns):
        asked = f"{seen}\n{question}" if number == 0 else question
        pieces += [
            (f"{START}user\n{asked}{END}\n{START}assistant\n", False),
            (f"{answer}{END}", True),
            ("\n", False),
        ]
    return pieces

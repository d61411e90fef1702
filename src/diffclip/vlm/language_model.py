"""A small language model with Qwen2's architecture, trained in minutes on texts about scenes only.

The texts teach the task that the model will have with images: a description of a scene takes the place of the patches,
and questions follow. Finding the words that a question shares with the text before it is learned in far fewer steps
from text than from images, and only once for all vision towers.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from diffclip.files import write_atomically
from diffclip.scenes.captions import write_captions
from diffclip.scenes.questions import TOPICS
from diffclip.training.distributed import native_precision
from diffclip.training.stopping import StopRequest
from diffclip.vlm.chat import CHAT_TEMPLATE, IGNORED, encode
from diffclip.vlm.conversations import IMAGE, Conversation, Turn
from diffclip.vlm.scenes import color_turn, count_things, describe, lay_out_scene, open_turn, yes_no_turns
from diffclip.vlm.trainer import fit, make_arguments

END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# words and parts of words; every word about scenes is a single token
_VOCABULARY = 1000
# the texts are about scenes that are never drawn, so that a model cannot know an image from its text
_TOKENIZER_SCENES = range(10_000_000, 10_001_000)
_CAPTION_SHARE = 0.15
_LENGTH = 1024  # tokens of the longest text
_WARMUP_STEPS, _BATCH = 50, 16
_SEED = 0


def make_language_model(folder: str | Path, steps: int = 800) -> None:
    """Train a language model and its tokenizer on texts about scenes, and save both to a new `folder` for transformers.

    A stopped training continues from checkpoints in FOLDER.training.
    """
    folder = Path(folder)
    run = folder.with_name(f"{folder.name}.training")
    run.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    lessons = _Lessons(tokenizer, steps)
    with StopRequest(run) as stop:
        arguments = make_arguments(
            run,
            per_device_train_batch_size=_BATCH,
            max_steps=steps,
            learning_rate=1e-3,
            lr_scheduler_type="warmup_stable_decay",
            lr_scheduler_kwargs={"num_decay_steps": steps // 5, "decay_type": "linear"},
            warmup_steps=min(_WARMUP_STEPS, steps // 5),
            weight_decay=0.01,
            adam_beta2=0.98,
            bf16=native_precision("auto", "cuda" if torch.cuda.is_available() else "cpu") == "bf16",
            seed=_SEED,
            save_steps=max(1, steps // 8),
        )
        model = _make_untrained(tokenizer)
        fit(run, model, lessons, tokenizer.pad_token_id, arguments, stop, resume=True)
        with write_atomically(folder) as temporary:
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
    shutil.rmtree(run)


def make_tokenizer() -> Any:
    """Train a byte-level BPE on texts about scenes, with ChatML's tokens and `<image>`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=[END_OF_TEXT, START, END, IMAGE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    kind: Any = PreTrainedTokenizerFast
    fast = kind(tokenizer_object=tokenizer, eos_token=END, pad_token=END_OF_TEXT)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _texts() -> Iterator[str]:
    yield "system\nYou are a helpful assistant.\nuser\nassistant\n"
    for index in _TOKENIZER_SCENES:
        specs, background, dice = lay_out_scene(index, _SEED)
        yield from write_captions(specs, background, dice)
        for turn in [*yes_no_turns(specs, dice.pick(tuple(TOPICS)), _often(), dice), open_turn(specs, dice)]:
            # separate texts, so that the first word of each has no space before it
            yield turn.question
            yield turn.answer


@cache
def _often() -> dict[str, list[Any]]:
    return count_things(lay_out_scene(index, _SEED)[0] for index in _TOKENIZER_SCENES)


def _make_untrained(tokenizer: Any) -> Any:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=384,
        max_position_embeddings=_LENGTH,
        tie_word_embeddings=True,
        initializer_range=0.05,  # with the usual 0.02 narrow models stay at chance longer
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        return Qwen2ForCausalLM(config)


class _Lessons(Dataset[dict[str, list[int]]]):
    """Token ids and labels of one text per scene, in training order; the first half is about colors alone.

    Yes/no answers contain little to learn from. If the texts have shapes and numbers from the first step on, answers
    stay at chance many times longer.
    """

    def __init__(self, tokenizer: Any, steps: int) -> None:
        self._processor, self._steps = SimpleNamespace(tokenizer=tokenizer, image_token=IMAGE), steps

    def __len__(self) -> int:
        return self._steps * _BATCH

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        specs, background, dice = lay_out_scene(_TOKENIZER_SCENES.stop + index, _SEED)
        is_early = index < self._steps // 2 * _BATCH
        if not is_early and dice.chance(_CAPTION_SHARE):
            first, second, *_ = write_captions(specs, background, dice)
            read, learned = self._processor.tokenizer(
                [first, f"{second}\n"], add_special_tokens=False
            ).input_ids
            return {"input_ids": read + learned, "labels": [IGNORED] * len(read) + learned}
        turns = yes_no_turns(specs, "colours" if is_early else dice.pick(tuple(TOPICS)), _often(), dice)
        open_turns = [color_turn(specs)] if is_early else [open_turn(specs, dice), open_turn(specs, dice)]
        # yes/no questions are easier after answers that need the description alone; both orders are needed
        turns = [*open_turns, *turns] if dice.chance(0.5) else [*turns, *open_turns]
        turns[0] = Turn(f"{describe(specs, dice)}\n{turns[0].question}", turns[0].answer)
        ids, labels = encode(Conversation("", None, tuple(turns)), self._processor, "chat", _LENGTH)
        return {"input_ids": ids, "labels": labels}

"""A study's verdict: one paragraph in plain words, made from the claims that were judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diffclip.report.compare import ENOUGH_SEEDS
from diffclip.report.study_claims import FAILS, HOLDS, OPEN, Judged, enough, judged_claims
from diffclip.report.study_data import StudyData
from diffclip.report.study_init import init_sentence
from diffclip.report.study_pairs import enumerated, is_real, p_cell, signed


def verdict(data: StudyData) -> str:
    """Which of the paper's claims hold at this size, which do not, which cannot be told, and what the init does."""
    judged = judged_claims(data)
    if not judged:
        return f"{data.study.title}: no claim can be judged yet, as no seed is finished for CLIP and another model."
    sizes = sorted({one.seeds for one in judged})
    seeds = " to ".join(str(size) for size in dict.fromkeys((sizes[0], sizes[-1])))
    text = f"{data.study.title}, over {seeds} training seed{'s' * (sizes[-1] != 1)}. "
    if not enough(judged):
        text += (
            f"Nothing can be told yet about which model is better: it takes {ENOUGH_SEEDS} seeds at least to tell a "
            "difference from the luck of training. "
        )
        exact = [one for one in judged if one.claim.kind == "parameters"]
        text += "".join(f"What is counted: {_claimed(exact, _numbers)} ({one.word}). " for one in exact)
        return f"{text}{init_sentence(data)}".strip()
    holds, fails, open_ = ([one for one in judged if one.word == word] for word in (HOLDS, FAILS, OPEN))
    text += (
        f"Of the paper's claims, at this size these hold: {_claimed(holds, _numbers)}. "
        if holds
        else "At this size none of the paper's claims is seen to hold. "
    )
    text += f"These do not hold: {_claimed(fails, _contrary)}. " if fails else "None is seen to be wrong. "
    if open_:
        text += f"These cannot be told: {_claimed(open_, lambda one: '')}{_power(open_)}. {_hints(open_)}"
    return f"{text}{init_sentence(data)}".strip()


def _claimed(judged: Sequence[Judged], numbers: Callable[[Judged], str]) -> str:
    """Claims in words, those about the same models together: "DiffCLIP better than CLIP at few-shot (+0.4 points)"."""
    groups: dict[str, list[Judged]] = {}
    for one in judged:
        groups.setdefault(one.claim.words, []).append(one)
    parts = []
    for words, own in groups.items():
        if own[0].claim.kind in ("parameters", "time"):
            parts.append(words + numbers(own[0]))
        else:
            parts.append(f"{words} at {enumerated([f'{_task(one)}{numbers(one)}' for one in own])}")
    return "; ".join(parts)


def _task(one: Judged) -> str:
    """A task as one is good at it."""
    named = {
        "out of domain": "zero-shot out of domain",
        "zero-shot": "zero-shot classification",
        "where models look": "looking at the named object",
        "fine-grained pairs": "fine-grained pairs (MMVP)",
    }
    return named.get(one.claim.task, one.claim.task)


def _numbers(one: Judged) -> str:
    """ " (+1.2 points, p 0.03)"."""
    if one.claim.kind == "parameters":
        return f" ({signed(one.test.difference.mean, 3)} %)"
    if one.claim.kind == "time":
        return f" ({signed(one.test.difference.mean)} %)"
    p = "" if one.p is None else f", p {p_cell(one.p)}"
    return f" ({signed(one.test.difference.mean)} points{p})"


def _contrary(one: Judged) -> str:
    """The numbers, and that they point the other way."""
    if one.claim.kind in ("parameters", "time"):
        return _numbers(one)
    return f", where it is worse{_numbers(one)}"


def _power(open_: Sequence[Judged]) -> str:
    """What the number of seeds could have shown, and which way the differences point."""
    tested = [one for one in open_ if one.claim.kind == "better"]
    detectable = sorted(one.test.detectable for one in tested if one.test.detectable is not None)
    if not detectable:
        return ""
    by_task = ", by the task" if len(detectable) > 1 else ""
    low, high = f"{100 * detectable[0]:.1f}", f"{100 * detectable[-1]:.1f}"
    between = low if low == high else f"{low} to {high}"
    along = sum(one.test.difference.mean > 0 for one in tested)
    return (
        f". Of the claims to be better among these, {along} of {len(tested)} differences point the paper's way; the "
        f"smallest true difference that so many seeds would have found in 80 % of cases is {between} points{by_task}"
    )


def _hints(open_: Sequence[Judged]) -> str:
    """What would count as a single test, and does not among these; empty if there is none."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for one in open_:
        if one.claim.kind == "better" and is_real(one.test.p):
            way = "better" if one.test.difference.mean > 0 else "worse"
            found.setdefault((one.claim.treated, way, one.claim.baseline), []).append(_task(one))
    if not found:
        return ""
    named = [f"{own} {way} than {other} at {enumerated(tasks)}" for (own, way, other), tasks in found.items()]
    return (
        f"Each for itself, without the correction, these would pass: {'; '.join(named)}. "
        "That is a hint, not a finding. "
    )

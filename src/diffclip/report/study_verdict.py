"""A study's verdict: one paragraph in plain words, made from the claims that were judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diffclip.report.compare import ENOUGH_SEEDS
from diffclip.report.study_claims import FAILS, HOLDS, OPEN, Judged, enough, judged_claims
from diffclip.report.study_data import StudyData
from diffclip.report.study_expense import NOT_TIMED
from diffclip.report.study_init import init_sentence
from diffclip.report.study_missing import diverged_sentence
from diffclip.report.study_pairs import detectable_text, enumerated, is_real, p_cell, signed
from diffclip.report.study_sweep import tuning_verdict
from diffclip.study.recipe import BASELINE, TREATED

_MANY = 4
"""Tasks that are not named one by one."""


def verdict(data: StudyData) -> str:
    """Which of the paper's claims hold at this size, which do not, which cannot be told, and what the init does."""
    judged = judged_claims(data)
    careful = _careful(data)
    if not any(one.seeds for one in judged):
        return (
            f"{careful}{data.study.title}: no claim can be judged yet, as no seed is finished for CLIP and another "
            f"model. {tuning_verdict(data)}"
        ).strip()
    sizes = sorted({one.seeds for one in judged if one.seeds})
    seeds = " to ".join(str(size) for size in dict.fromkeys((sizes[0], sizes[-1])))
    text = f"{careful}{data.study.title}, over {seeds} training seed{'s' * (sizes[-1] != 1)}. "
    if not enough(judged):
        text += (
            f"Nothing can be told yet about which model is better: it takes {ENOUGH_SEEDS} seeds at least to tell a "
            "difference from the luck of training. "
        )
        exact = [one for one in judged if one.claim.kind == "parameters"]
        text += "".join(f"What is counted: {_claimed([one], _numbers)}: {one.word}. " for one in exact)
        return f"{text}{tuning_verdict(data)}{init_sentence(data, brief=True)}".strip()
    text += _main(judged)
    holds, fails, open_ = ([one for one in judged if one.word == word] for word in (HOLDS, FAILS, OPEN))
    text += (
        f"Of the paper's claims, at this size these hold: {_claimed(holds, _numbers)}. "
        if holds
        else "At this size none of the paper's claims is seen to hold. "
    )
    text += f"These do not hold: {_claimed(fails, _contrary)}. " if fails else "None is seen to fail. "
    text += _by_itself(judged)
    if open_:
        text += f"These cannot be told: {_undecided(open_, judged)}{_power(judged)}. {_hints(open_)}"
    if data.timing is None:
        text += f"{NOT_TIMED} "
    return f"{text}{tuning_verdict(data)}{init_sentence(data, brief=True)}".strip()


def _careful(data: StudyData) -> str:
    """That finished runs do not count, or diverged; empty where all do and none did."""
    left, diverged = len(data.strays), diverged_sentence(data)
    are = "run in this folder does" if left == 1 else "runs in this folder do"
    unfit = f"{left} finished {are} not fit the study as it is planned now, see what has been run. " * bool(
        left
    )
    return f"Careful: {unfit}{diverged}{' ' * bool(diverged)}" if unfit or diverged else ""


def _main(judged: Sequence[Judged]) -> str:
    """At how many of its tasks DiffCLIP is better than CLIP, worse, or neither, and at which CLIP is at chance."""
    own = [one for one in judged if one.claim.kind == "better" and _of_main(one)]
    if not own:
        return ""
    better, worse = (sum(one.word == word for one in own) for word in (HOLDS, FAILS))
    low = [_task(one) for one in own if one.at_chance]
    chance = f" CLIP itself cannot be told from chance at {enumerated(low)}." if low else ""
    if better == worse == 0:
        tasks = "its one task" if len(own) == 1 else f"any of {len(own)} tasks"
        return (
            f"DiffCLIP and CLIP cannot be told apart at {tasks}, correcting for all that is tested.{chance} "
        )
    open_ = len(own) - better - worse
    return (
        f"Of {len(own)} task{'s' * (len(own) > 1)} DiffCLIP is better than CLIP at {better or 'none'} and worse at "
        f"{worse or 'none'}{f'; {open_} cannot be told' * bool(open_)}.{chance} "
    )


def _of_main(one: Judged) -> bool:
    return (one.claim.treated, one.claim.baseline) == (TREATED, BASELINE)


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


def _undecided(open_: Sequence[Judged], judged: Sequence[Judged]) -> str:
    """Claims in words; many tasks of two models of which none is decided go without their names."""
    parts = []
    for words in dict.fromkeys(one.claim.words for one in open_):
        own = [one for one in open_ if one.claim.words == words]
        every = len(own) == sum(one.claim.words == words for one in judged)
        many = every and len(own) >= _MANY
        parts.append(f"{words} at any of {len(own)} tasks" if many else _claimed(own, lambda one: ""))
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


def _by_itself(judged: Sequence[Judged]) -> str:
    """How many of the claims to be about as good are decided, which has not been corrected for their number."""
    own = [one for one in judged if one.claim.kind == "as good"]
    parts = []
    for word, named in ((HOLDS, ("holds", "hold")), (FAILS, ("does not", "do not"))):
        number = sum(one.word == word for one in own)
        parts += [f"{number} {named[number > 1]}"] if number else []
    if not parts:
        return ""
    return f"Of {len(own)} claims to be about as good, each judged by itself, {enumerated(parts)}. "


def _power(judged: Sequence[Judged]) -> str:
    """What the number of seeds could have shown after the correction, and which way the open differences point."""
    tested = [one for one in judged if one.claim.kind == "better"]
    between = detectable_text([one.test for one in tested])
    if not between:
        return ""
    tests = sum(one.p is not None for one in tested)
    open_ = [one for one in tested if one.word == OPEN]
    along = sum(one.test.difference.mean > 0 for one in open_)
    after = f"after the correction for {tests} tests, " if tests > 1 else ""
    return (
        f". Of {len(open_)} claims to be better among these, {along} point{'s' * (along == 1)} the paper's way; {after}"
        f"the smallest true difference that so many seeds would have found in 80 % of cases is {between}"
        f"{', by the task' * (tests > 1)}"
    )


def _hints(open_: Sequence[Judged]) -> str:
    """What would count as a single test, and does not among these; empty if there is none."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for one in open_:
        if one.claim.kind == "better" and not one.at_chance and is_real(one.test.p):
            way = "better" if one.test.difference.mean > 0 else "worse"
            found.setdefault((one.claim.treated, way, one.claim.baseline), []).append(_task(one))
    if not found:
        return ""
    named = [f"{own} {way} than {other} at {enumerated(tasks)}" for (own, way, other), tasks in found.items()]
    return f"Without the correction for several tests, these would pass, a hint and no finding: {'; '.join(named)}. "

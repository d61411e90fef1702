"""Finished runs in a study's folder that are no runs of it as it is now: a report must not lose them in silence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from diffclip.study.folder import COST_FILE, misfit
from diffclip.study.plan import GROUPS, Planned
from diffclip.study.recipe import Study


@dataclass(frozen=True)
class Stray:
    """One finished run that does not count, by its group and name, and why it does not."""

    name: str
    reason: str


def strays_in(
    study: Study, folder: Path, planned: Sequence[Planned], counted: set[str], decided: bool
) -> list[Stray]:
    """The runs in `folder` that are finished and not `counted`.

    Args:
        planned: every run of the study.
        counted: `str` of those that the report has.
        decided: whether the sweep has chosen; before, the settings of the other groups are not known.
    """
    known = {str(one): one for one in planned}
    found = []
    for group in GROUPS:
        for cost in sorted((folder / group).glob(f"[!.]*/{COST_FILE}")):
            name = f"{group}/{cost.parent.name}"
            if name in counted:
                continue
            if name not in known:
                reason = "the study has no such run"
            elif group != "sweep" and not decided:
                reason = "its settings wait for the sweep"
            else:
                reason = misfit(study, known[name], folder) or f"its {COST_FILE} cannot be read"
            found.append(Stray(name, reason))
    return found


def strays_sentence(strays: Sequence[Stray], recipe: str) -> str:
    """What is left out, those of one reason together; empty where nothing is."""
    if not strays:
        return ""
    reasons: dict[str, list[str]] = {}
    for one in strays:
        reasons.setdefault(one.reason, []).append(one.name)
    told = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    are = "run here is" if len(strays) == 1 else "runs here are"
    return (
        f"Left out: {len(strays)} finished {are} not as the study is planned now ({told}). Where a training recipe "
        f"was edited ({recipe}), undo that, or run the study anew."
    )

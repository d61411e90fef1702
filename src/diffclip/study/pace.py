"""How long the runs of a study take, from those that are finished."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from diffclip.study.folder import is_finished, read_cost
from diffclip.study.plan import GROUPS, Group, Planned
from diffclip.study.recipe import Study


class Pace:
    """The seconds that a run of each group takes: the median of what its finished runs in the study's folder say they
    cost, and for a group without any that of the longest other group. What a run took in one call says less: it may
    have gone on from a checkpoint, or been trained before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._costs: dict[Group, list[float]] = defaultdict(list)

    @classmethod
    def of_finished(cls, study: Study, runs: Iterable[Planned], folder: Path) -> Pace:
        """That of those of `runs` that are finished in the study's `folder`."""
        pace = cls(folder)
        for planned in runs:
            if is_finished(study, planned, folder):
                pace.add(planned)
        return pace

    def add(self, planned: Planned) -> None:
        """Count a run that is finished, unless it diverged, perhaps early."""
        cost = read_cost(self._folder / str(planned))
        if cost is not None and "diverged" not in cost:
            self._costs[planned.group].append(cost["seconds"] + (cost["suite_seconds"] or 0.0))

    def seconds(self, group: Group) -> float | None:
        """What a run of the group is expected to take; None as long as no run has ended."""
        own = self._known(group)
        return own if own is not None else max(filter(None, map(self._known, GROUPS)), default=None)

    def seconds_of(self, groups: Iterable[Group], workers: int) -> float | None:
        """What a run of each of `groups` takes together, with so many at a time; None where that is not known."""
        each = [self.seconds(group) for group in groups]
        known = [seconds for seconds in each if seconds is not None]
        return sum(known) / workers if len(known) == len(each) else None

    def _known(self, group: Group) -> float | None:
        found = self._costs.get(group)
        return median(found) if found else None

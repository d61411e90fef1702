"""Records and outcomes of what is done so far, in a file that is whole after each task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from diffclip.errors import InputError
from diffclip.evaluation.averages import is_derived, with_averages
from diffclip.evaluation.outcomes import (
    ItemOutcomes,
    key_of,
    outcomes_file,
    read_outcomes,
    write_outcomes,
)
from diffclip.evaluation.records import Record, read_records, write_records
from diffclip.evaluation.scores import Result


class Ledger:
    """Collects results, and writes them to `path` (and the outcomes of their items beside it) when told to.

    What the file held already is kept where `keep` says so, until the same is measured again. Everything else in it
    that `expected` does not name would be lost, which is refused; without `expected` the file is replaced.

    Raises:
        InputError: the file holds records that would be lost, or no records.
    """

    def __init__(
        self,
        path: Path | None,
        expected: Callable[[Record], bool] | None = None,
        keep: Callable[[Record], bool] = lambda record: False,
    ) -> None:
        self.path = path
        self._records: list[Record] = []
        self._outcomes: dict[str, ItemOutcomes] = {}
        if path is None or expected is None or not path.is_file():
            return
        for record in read_records(path):
            if keep(record):
                self._records.append(record)
            elif not expected(record) and not is_derived(record):
                raise InputError(
                    f"{path} holds results that would be lost ({record.model} from {record.weights}, {record.task} on "
                    f"{record.dataset}): give another --output, or measure them all in one call"
                )
        if self._records:
            kept = {key_of(record) for record in self._records}
            outcomes = read_outcomes(outcomes_file(path))
            self._outcomes = {key: one for key, one in outcomes.items() if key in kept}

    @property
    def records(self) -> list[Record]:
        """All records so far, of several sets with the averages that follow from them."""
        several = len({(record.task, record.dataset) for record in self._records}) > 1
        return with_averages(self._records) if several else list(self._records)

    @property
    def outcomes(self) -> dict[str, ItemOutcomes]:
        """The outcomes of the items of each record that has some, by `key_of`."""
        return self._outcomes

    def add(self, result: Result, model: str, weights: str, seed: int | None) -> None:
        """Add a result in place of an earlier one of the same; `model`, `weights` and the training `seed` say whose."""
        records = result.records(model, weights, seed)
        again = {key_of(record) for record in records}
        self._records = [record for record in self._records if key_of(record) not in again] + records
        for record, score in zip(records, result.scores, strict=True):
            if score.hits is not None:
                self._outcomes[key_of(record)] = ItemOutcomes(score.hits, score.clusters)

    def write(self) -> None:
        """Write records and outcomes, each whole or not at all; nothing without a path.

        Raises:
            InputError: the place cannot be written.
        """
        if self.path is None:
            return
        if is_file(self.path):
            write_outcomes(outcomes_file(self.path), self._outcomes)
        write_records(self.path, self.records)


def is_file(path: Path) -> bool:
    """Whether `path` is a file, or would be one: what goes into a pipe or to a terminal is written once."""
    return path.is_file() or not path.exists()

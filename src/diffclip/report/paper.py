"""The numbers that the paper prints, from a file that names the place of each (`paper_numbers.json`)."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from pydantic import BaseModel, ConfigDict


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PaperRow(_Strict):
    """What one model reached on the sets of its table, in percent; gains in points, as printed."""

    pretraining: str
    model: str
    values: tuple[float, ...]
    average: float | None = None
    sds: tuple[float, ...] | None = None
    average_sd: float | None = None
    gains: tuple[float, ...] | None = None
    average_gain: float | None = None

    @property
    def label(self) -> str:
        return f"{self.model}, {self.pretraining} (paper)"


class PaperTable(_Strict):
    """A printed table or a part of one; `sets` are its columns."""

    name: str
    source: str
    sets: tuple[str, ...]
    rows: tuple[PaperRow, ...]

    def baseline(self, row: PaperRow) -> PaperRow | None:
        """The CLIP of the same pretraining; None for a CLIP."""
        fitting = (one for one in self.rows if one.model == "CLIP" and one.pretraining == row.pretraining)
        return None if row.model == "CLIP" else next(fitting, None)


class Statement(_Strict):
    """A gain, in points, that the text gives for one of the six tasks."""

    panel: str
    pretraining: str
    model: str
    baseline: str
    gain: float
    source: str
    text: str


class PairRow(_Strict):
    """How many pairs one model has right, and the percentage that is printed."""

    model: str
    right: int
    printed: float


class PairNumbers(_Strict):
    """The paper's MMVP-VLM."""

    pretraining: str
    source: str
    remark: str
    patterns: int
    pairs: int
    rows: tuple[PairRow, ...]


class AnswerRow(_Strict):
    """What one model reached on one file of POPE, and the gains that are printed for the three."""

    model: str
    split: str
    accuracy: float
    precision: float
    recall: float
    gains: tuple[float, float, float] | None = None

    @property
    def f1(self) -> float:
        """Derived: the harmonic mean of precision and recall."""
        return 2 * self.precision * self.recall / (self.precision + self.recall)


class AnswerNumbers(_Strict):
    """The paper's POPE; `counts` are (questions, those with the answer yes) by file."""

    pretraining: str
    source: str
    remark: str
    counts: dict[str, tuple[int, int]]
    rows: tuple[AnswerRow, ...]

    def yes_ratio(self, row: AnswerRow) -> float:
        """Derived: of all questions, yes · recall are right yeses, and precision is their share of all yeses."""
        questions, yes = self.counts[row.split]
        return 100 * yes / questions * row.recall / row.precision

    def right(self, row: AnswerRow) -> int:
        """Derived: how many questions the accuracy stands for."""
        return round(row.accuracy / 100 * self.counts[row.split][0])


class PaperNumbers(_Strict):
    """All of it; `remarks` say where printed numbers do not agree, and what is not printed."""

    paper: str
    unit: str
    architecture: str
    tables: tuple[PaperTable, ...]
    statements: tuple[Statement, ...]
    pairs: PairNumbers
    answers: AnswerNumbers
    remarks: tuple[str, ...]

    def table(self, name: str) -> PaperTable | None:
        """The table called `name`, such as "linear-probe" or "few-shot-seeds"."""
        return next((table for table in self.tables if table.name == name), None)


@cache
def paper_numbers() -> PaperNumbers:
    """The paper's numbers."""
    text = files("diffclip.report").joinpath("paper_numbers.json").read_text("utf-8")
    return PaperNumbers.model_validate_json(text)


_PANEL_TABLES = {
    "linear probing": "linear-probe",
    "few-shot": "few-shot",
    "image retrieval": "image-retrieval",
    "text retrieval": "text-retrieval",
    "zero-shot": "zero-shot",
}


def paper_panels() -> dict[tuple[str, str], dict[str, tuple[float | None, float | None]]]:
    """The six tasks of the paper's Figures 1 and 5: (model, pretraining) → panel → (value, gain over CLIP).

    Values are the tables' averages; where the text gives a gain only, the value is None.
    """
    numbers = paper_numbers()
    found: dict[tuple[str, str], dict[str, tuple[float | None, float | None]]] = {}
    for panel, name in _PANEL_TABLES.items():
        table = numbers.table(name)
        for row in table.rows if table else ():
            # a table of one set prints no average
            value = row.values[0] if row.average is None else row.average
            gain = row.average_gain if row.average_gain is not None else row.gains[0] if row.gains else None
            found.setdefault((row.model, row.pretraining), {})[panel] = (value, gain)
    for one in numbers.statements:
        if one.baseline == "CLIP":
            found.setdefault((one.model, one.pretraining), {}).setdefault(one.panel, (None, one.gain))
    return found

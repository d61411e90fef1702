"""The declared comparisons: which arms at which measures, and how they are tested.

A `Family` is the part of a study's spec that says what is compared; beside records that no study made, it is the whole
spec:

    title: DiffCLIP in the vision tower
    endpoints:
      primary: {arm: DiffCLIP, against: CLIP, task: retrieval, dataset: flickr8k, metric: mean_recall}
      secondary:
      - {task: few-shot, dataset: caltech101, metric: acc1, margin: {share: 0.05}}
    contrasts: [[DiffCLIP, CLIP], [DiffCLIP-vision, CLIP]]
    test: welch
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from diffclip.evaluation.records import MEASURE, Record

Contrast = tuple[str, str]
"""(arm, against)."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Share(_Part):
    """A margin as a share of the baseline's value."""

    share: float = Field(gt=0, lt=1)


Margin = Annotated[
    Annotated[float, Field(gt=0), Tag("points")] | Annotated[Share, Tag("share")],
    Discriminator(lambda given: "share" if isinstance(given, (Mapping, Share)) else "points"),
]


class Endpoint(_Part):
    """A measure to compare, and its margin of equivalence.

    The fields are those of a record. A field that is not given has to follow from the others.

    Attributes:
        study: the study of the records, if they are of several. "k16 - k0" is a derived measure: the value in study
            k16 minus that in study k0, for each model and run.
        margin: differences inside ±margin count as equivalent: a fraction (0.01 is a point), or a share of the
            baseline. Without one nothing is called equivalent.
    """

    task: str
    dataset: str
    metric: str
    study: str | None = None
    split: str | None = None
    classes: int | None = None
    templates: int | None = None
    of: tuple[str, ...] | None = None
    corruption: str | None = None
    severity: int | None = None
    epsilon: float | None = None
    layer: int | None = None
    head: int | None = None
    map: str | None = None
    margin: Margin | None = None

    def select(self, records: Iterable[Record]) -> list[Record]:
        """Return the records of this endpoint. A field that is not given is absent, if it is absent in some of them."""
        given = {name: value for name in MEASURE if (value := getattr(self, name)) is not None}
        rows = [record for record in records if all(getattr(record, name) == given[name] for name in given)]
        for name in set(MEASURE) - given.keys():
            rows = [record for record in rows if getattr(record, name) is None] or rows
        return rows


class Primary(Endpoint):
    """The endpoint and the contrast that are tested at 5 % without correction."""

    arm: str
    against: str

    @property
    def endpoint(self) -> Endpoint:
        """The measure alone."""
        return Endpoint(**self.model_dump(exclude={"arm", "against"}))


class Endpoints(_Part):
    """The measures of a family; without `secondary` they are the headline measures, which `diffclip report` chooses."""

    primary: Primary | None = None
    secondary: tuple[Endpoint, ...] | None = None


class Family(BaseModel):
    """The comparisons that are corrected together: every contrast at every endpoint, except the primary one.

    Attributes:
        title: heading of the report.
        contrasts: pairs (arm, against).
        test: a t test over runs, paired by run or Welch's; None: paired if both arms have the same runs.
        unit: what counts as a run: each seed (of each fold), or each fold (its seeds averaged).
        pooled: pool the residual over all arms, for designs of two or three seeds.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    title: str | None = None
    endpoints: Endpoints = Field(default_factory=Endpoints)
    contrasts: list[Contrast] = Field(default_factory=list)
    test: Literal["paired", "welch"] | None = None
    unit: Literal["seed", "fold"] = "seed"
    pooled: bool = False

    @model_validator(mode="after")
    def _check(self) -> Family:
        self._check_contrasts()
        return self

    def _check_contrasts(self) -> None:
        for arm, against in self.all_contrasts:
            if arm == against:
                raise ValueError(f"{arm} is compared with itself: name two arms")

    @property
    def all_contrasts(self) -> list[Contrast]:
        """The contrasts, that of the primary endpoint first."""
        primary = self.endpoints.primary
        first = [(primary.arm, primary.against)] if primary else []
        return list(dict.fromkeys([*first, *self.contrasts]))

    @property
    def measures(self) -> list[Endpoint]:
        """The endpoints, the primary one first; a secondary endpoint of the primary measure is the same."""
        primary, rest = self.endpoints.primary, self.endpoints.secondary or ()
        first = [primary.endpoint] if primary else []
        others = [one for one in rest if not any(_is_same(one, own) for own in first)]
        return list(dict.fromkeys(first + others))

    def count_missing(self, ended: Collection[tuple[str, int]]) -> int:
        """Count the planned runs of the family's arms without those that have `ended`, by arm and seed."""
        return 0


def _is_same(one: Endpoint, other: Endpoint) -> bool:
    """Tell whether two endpoints can be the same measure: no field that both give differs, nor the study."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in MEASURE]
    return one.study == other.study and all(a == b or None in (a, b) for a, b in pairs)

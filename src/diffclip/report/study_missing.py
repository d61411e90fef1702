"""What a study has not run or measured yet."""

from __future__ import annotations

from diffclip.evaluation.suite import suite
from diffclip.report.study_data import StudyData
from diffclip.report.study_pairs import enumerated
from diffclip.study.plan import GROUPS


def progress(data: StudyData) -> str:
    """How many of the planned runs are finished, group by group, and what of its suite no model was put through."""
    parts = []
    for group in GROUPS:
        planned = [one for one in data.planned if one.group == group]
        missing = [one for one in data.missing if one.group == group]
        if planned:
            parts.append(f"{len(planned) - len(missing)} of {len(planned)} runs of the {_named(group)}")
    finished = f"Finished: {enumerated(parts)}."
    if not data.missing:
        finished = f"All that was planned has been run: {len(data.planned)} runs. {finished}"
    return " ".join(filter(None, [finished, _not_run(data), _not_put_through(data)]))


def _named(group: str) -> str:
    return "sweep" if group == "sweep" else f"group {group}"


def _not_run(data: StudyData) -> str:
    found: list[str] = []
    for group in GROUPS:
        missing = [one for one in data.missing if one.group == group]
        if missing and len(missing) == sum(one.group == group for one in data.planned):
            found.append(f"anything of the {_named(group)}")
        elif group == "sweep":
            found += [one.name for one in missing]
        else:
            arms: dict[str, list[str]] = {}
            for one in missing:
                arms.setdefault(one.arm, []).append(str(one.seed))
            alike: dict[str, list[str]] = {}
            for arm, seeds in arms.items():
                alike.setdefault(f"seed{'s' * (len(seeds) > 1)} {enumerated(seeds)}", []).append(arm)
            found += [f"{enumerated(own)} ({seeds})" for seeds, own in alike.items()]
    return f"Not run yet: {'; '.join(found)}." if found else ""


def _not_put_through(data: StudyData) -> str:
    """Entries of the models' suite that no finished run has a record of, as where a set was not there."""
    if not data.collection.runs:
        return ""
    known = {(one.record.task, one.record.dataset) for one in data.collection.results}
    known |= {(one.record.task, one.record.dataset) for one in data.collection.details}
    lacking = [
        str(entry)
        for entry in suite(data.study.models.suite)
        if (entry.task, entry.dataset_in_records) not in known
    ]
    return f"Of the suite {data.study.models.suite}, not measured: {enumerated(lacking)}." if lacking else ""

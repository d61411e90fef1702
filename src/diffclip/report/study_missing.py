"""What a study has not run or measured yet, which runs diverged, and which arms are others under another name."""

from __future__ import annotations

from diffclip.evaluation.suite import suite
from diffclip.report.study_data import StudyData
from diffclip.report.study_pairs import enumerated
from diffclip.study.plan import GROUPS


def progress(data: StudyData) -> str:
    """How many of the planned runs are finished, group by group, which of them diverged, which arms are left out as
    repetitions, and what of its suite no model was put through.
    """
    parts = []
    for group in GROUPS:
        planned = [one for one in data.planned if one.group == group]
        missing = [one for one in data.missing if one.group == group]
        if planned:
            parts.append(f"{len(planned) - len(missing)} of {len(planned)} runs of the {_named(group)}")
    finished = f"Finished: {enumerated(parts)}."
    if not data.missing:
        finished = f"All that was planned has been run: {len(data.planned)} runs. {finished}"
    said = [finished, _diverged_runs(data), _repeated(data), _not_run(data), _not_put_through(data)]
    return " ".join(filter(None, said))


def diverged_sentence(data: StudyData) -> str:
    """Which arms have lost seeds, and what that does to what is said of them; empty where none has."""
    lost: dict[str, list[int]] = {}
    for one in data.diverged:
        if one.planned.group != "sweep":
            lost.setdefault(one.planned.arm, []).append(one.planned.seed)
    left = {arm: seeds for arm, seeds in lost.items() if arm in data.arms}
    gone = [arm for arm in lost if arm not in data.arms]
    parts = []
    if left:
        named = enumerated(
            [f"{arm} (seed{'s' * (len(own) > 1)} {_numbers(own)})" for arm, own in left.items()]
        )
        it = "it" if len(left) == 1 else "them"
        parts.append(
            f"{named} diverged: what is said of {it} is over the seeds that are left, which flatters {it}."
        )
    if gone:
        it = "it" if len(gone) == 1 else "them"
        parts.append(
            f"{enumerated(gone)} diverged in every seed that was run, so that nothing is said of {it}."
        )
    return " ".join(parts)


def _diverged_runs(data: StudyData) -> str:
    """Every run that diverged with its step, those of the sweep too; empty where none did."""
    if not data.diverged:
        return ""
    named = [
        f"{one.planned.name if one.planned.group == 'sweep' else f'{one.planned.arm} seed {one.planned.seed}'} "
        f"(step {one.step})"
        for one in data.diverged
    ]
    return f"Diverged, and so finished without a score: {enumerated(named)}."


def _repeated(data: StudyData) -> str:
    """Which arms are not run, as they would be others once more; empty where none is."""
    if not data.repeats:
        return ""
    named = [f"{arm} would repeat {earlier}" for arm, earlier in data.repeats.items()]
    chosen = " with the settings that were chosen" if data.chosen else ""
    are, have, rows = ("is", "has", "row") if len(named) == 1 else ("are", "have", "rows")
    return f"{enumerated(named)}{chosen}, and so {are} not run and {have} no {rows}."


def _numbers(seeds: list[int]) -> str:
    return enumerated([str(seed) for seed in seeds])


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

"""A check of shards in words: one line a question that somebody has about data."""

from __future__ import annotations

from diffclip.data.check import LEARNED_AT, Check, Repetition, Spread
from diffclip.data.check_duplicates import DISTANCE

_LANGUAGES = 5


def headline(check: Check) -> str:
    """Whether this data can be trained on, in one sentence."""
    of = (
        f"{check.read:,} samples drawn from {check.usable:,}"
        if check.seed is not None
        else f"{check.usable:,} samples"
    )
    if check.whole == check.read:
        return f"All {of} can be trained on."
    return f"{check.whole:,} of {of} can be trained on ({share(check.whole, check.read)})."


def rows(check: Check) -> list[tuple[str, str]]:
    """(what, answer): the summary as a table of two columns."""
    shards, pictures, captions = check.shards, check.pictures, check.captions
    held = shards.samples
    found = [
        (
            "shards",
            f"{shards.count:,} with {_range(held)} samples, median {_n(held['median'])}; {len(shards.broken):,} faults",
        ),
        ("uneven shards", f"{len(shards.uneven):,} with less than half of the median"),
        ("samples with picture and caption", f"{check.usable:,}; {check.lacks:,} lack one or the other"),
        ("read", "all" if check.seed is None else f"{check.read:,}, drawn with seed {check.seed}"),
        ("can be trained on", f"{check.whole:,} ({share(check.whole, check.read)})"),
        ("unreadable pictures", _of(len(check.unreadable_pictures), check.read)),
        ("unreadable captions", _of(len(check.unreadable_captions), check.read)),
        (
            "shorter edge",
            f"{_middle(pictures.shorter_edge, unit=' px')}; below {LEARNED_AT}: {_of(pictures.small, check.whole)}",
        ),
        ("width by height", _middle(pictures.aspect, ".2f")),
        (
            "picture file",
            _middle({name: value / 1000 for name, value in pictures.size.items()}, ".3g", " KB"),
        ),
        ("one colour only", _of(pictures.one_colour, check.whole)),
        ("captions", f"{captions.count:,}, {captions.count / check.whole:.2g} a picture"),
        ("words", _middle(captions.words)),
        ("tokens", _middle(captions.tokens)),
        (
            f"cut at {captions.context_length} tokens",
            _of(captions.truncated, captions.count),
        ),
        ("repeated captions", _of(captions.count - captions.different, captions.count)),
        ("languages", _languages(check)),
        ("same file as another", _repeated(check.exact, check.whole)),
    ]
    near = "not looked for: run pip install 'diffclip[data]'"
    if check.near is not None:
        near = f"{_repeated(check.near, check.whole)} (pHash, {DISTANCE} bits of 64)"
    return [*found, ("looks like another", near)]


def share(part: int, whole: int) -> str:
    """A percentage that shows that something is there: "12 %", "0.02 %", "99.98 %", "0 %"."""
    if not part or part == whole:
        return f"{100 * part // max(whole, 1)} %"
    percent = 100 * part / whole
    edge = min(percent, 100 - percent)
    digits = 0 if edge >= 10 else 1 if edge >= 1 else 2 if edge >= 0.01 else 4
    return f"{percent:.{digits}f} %"


def clean(text: str) -> str:
    """`text` as any file or terminal takes it: what is no character becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _of(part: int, whole: int) -> str:
    return f"{part:,} ({share(part, whole)})"


def _n(value: float, form: str = ",.0f") -> str:
    return format(value, form)


def _range(values: Spread, form: str = ",.0f", unit: str = "") -> str:
    low, high = _n(values["min"], form), _n(values["max"], form)
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


def _middle(values: Spread, form: str = ",.0f", unit: str = "") -> str:
    if values["min"] == values["max"]:
        return f"always {_n(values['median'], form)}{unit}"
    between = f"90 % within {_n(values['5 %'], form)} to {_n(values['95 %'], form)}"
    return f"median {_n(values['median'], form)}, {between}, all within {_range(values, form, unit)}"


def _languages(check: Check) -> str:
    found = check.captions.languages
    if found is None:
        return "not looked for: run pip install 'diffclip[data]'"
    named = [
        f"{name} {share(count, check.captions.guessed)}" for name, count in list(found.items())[:_LANGUAGES]
    ]
    more = f", {len(found) - _LANGUAGES} more" if len(found) > _LANGUAGES else ""
    drawn = "all" if check.captions.guessed == check.captions.count else f"{check.captions.guessed:,}"
    return f"{', '.join(named)}{more} (a guess by py3langid from {drawn} captions)"


def _repeated(found: Repetition, whole: int) -> str:
    groups = len(found.groups)
    return f"{_of(found.pictures, whole)}" + (f", {groups:,} group{'s' * (groups != 1)}" if groups else "")

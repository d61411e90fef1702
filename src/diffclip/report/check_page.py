"""A check of shards as one self-contained HTML page: numbers, distributions, and the pictures behind them."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffclip.config import TextConfig
from diffclip.data.check import Check, Repetition, caption_texts
from diffclip.data.check_duplicates import equal_groups, near_groups
from diffclip.data.check_scan import MOST_TOKENS, Scan
from diffclip.data.check_summary import clean, headline, rows, share
from diffclip.data.corpus import Corpus
from diffclip.data.samples import Fault, captions_of, pixels_of
from diffclip.errors import InputError
from diffclip.files import write_text
from diffclip.report.histogram import histogram
from diffclip.tokenizer import Tokenizer

_SHOWN = 24
_ODD = 6
_GROUPS, _OF_A_GROUP = 8, 6
_LISTED = 20
_CAPTIONS = 5
_LETTERS = 300
# pixels of a picture on the page, at most
_THUMBNAIL = (300, 200)


def write_check_page(output: str | Path, check: Check, scan: Scan, corpus: Corpus, command: str) -> Path:
    """Write the page to `output`, whole or not at all, and return its path.

    Args:
        output: the HTML file.
        check: what was found.
        scan: the numbers that it comes from.
        corpus: where the pictures are, which are read again.
        command: what made the page, shown on it.

    Raises:
        InputError: `output` cannot be written, or a sample cannot be read any more.
    """
    write_text(output, clean(_page(check, _Pictures(corpus, scan, check), command)))
    return Path(output)


def _page(check: Check, pictures: _Pictures, command: str) -> str:
    title = f"Check of {_named(check.sources)}"
    sections = [
        ("Numbers", _table(("what", "answer"), rows(check))),
        ("Distributions", _histograms(check, pictures.scan)),
        ("Samples", _drawn(check, pictures)),
        ("Duplicates", _duplicates(check, pictures)),
        ("Captions", _captions(check, pictures)),
        ("Odd ones", _odd(check, pictures)),
        ("Broken", _broken(check)),
        ("How it was made", f"<pre>{_text(command)}</pre>"),
    ]
    sections = [(name, content) for name, content in sections if content]
    links = "".join(f'<a href="#{_anchor(name)}">{name}</a>' for name, _ in sections)
    body = "".join(
        f'<section id="{_anchor(name)}"><h2>{name}</h2>{content}</section>' for name, content in sections
    )
    drawn = "" if check.seed is None else " of what was drawn; duplicates are those within it"
    folder = files("diffclip.report")
    css = "".join(folder.joinpath(name).read_text("utf-8") for name in ("page.css", "check_page.css"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{css}</style></head><body><main>"
        f'<header><p class="kicker">{check.shards.count:,} shards, {check.usable:,} samples</p>'
        f'<h1>{_text(title)}</h1><p class="headline">{_text(headline(check))}</p>'
        f'<p class="caveat">The numbers are those of samples that can be read{drawn}.</p></header>'
        f"<nav>{links}</nav>{body}<footer>diffclip {_text(check.version)}</footer></main></body></html>\n"
    )


class _Pictures:
    """Samples as cards and thumbnails, by their place in the scan."""

    def __init__(self, corpus: Corpus, scan: Scan, check: Check) -> None:
        self.corpus, self.scan = corpus, scan
        self._sources = check.sources

    def cards(self, places: Iterable[int], note: Callable[[int], str] = lambda place: "") -> str:
        return f'<div class="samples">{"".join(self._card(place, note(place)) for place in places)}</div>'

    def group(self, places: Sequence[int]) -> str:
        """A row of the first pictures of a group, and what they are called."""
        shown = [self._read(place) for place in places[:_OF_A_GROUP]]
        names = ", ".join(self.short(sample.name) for sample in shown)
        more = f" and {len(places) - _OF_A_GROUP:,} more" if len(places) > _OF_A_GROUP else ""
        images = "".join(_image(sample.members, sample.name) for sample in shown)
        return f"<div>{images}<span>{len(places):,} times: {_text(names)}{more}</span></div>"

    def short(self, name: str) -> str:
        """A sample's name without the folder that the page is about."""
        for source in self._sources:
            name = name.removeprefix(source.rstrip("/") + "/")
        return name

    def _card(self, place: int, note: str) -> str:
        sample = self._read(place)
        captions = captions_of(sample.members, sample.name, self.corpus.caption_key)
        lines = "".join(f"<p>{_text(caption)}</p>" for caption in captions[:_CAPTIONS])
        more = f"<p>… {len(captions) - _CAPTIONS} more</p>" if len(captions) > _CAPTIONS else ""
        size = f"{self.scan.width[place]}×{self.scan.height[place]}"
        return (
            f"<figure>{_image(sample.members, sample.name)}<figcaption>{lines}{more}"
            f"<small>{_text(note)}{size}, {_text(self.short(sample.name))}</small></figcaption></figure>"
        )

    def _read(self, place: int) -> Any:
        sample = self.corpus.read(int(self.scan.number[place]))
        if isinstance(sample, Fault):
            raise InputError(f"{sample}, but could be read before: start again")
        return sample


def _histograms(check: Check, scan: Scan) -> str:
    context = check.captions.context_length
    drawn = [
        histogram(np.minimum(scan.width, scan.height), "Shorter edge, pixels"),
        histogram(scan.width / scan.height, "Width by height"),
        histogram(scan.size / 1000, "Picture file, KB"),
        histogram(scan.words, "Caption, words"),
        histogram(scan.tokens, f"Caption, tokens; the model reads {context}", context + 0.5),
    ]
    return f'<div class="histograms">{"".join(drawn)}</div>'


def _drawn(check: Check, pictures: _Pictures) -> str:
    count = min(_SHOWN, len(pictures.scan))
    places = np.sort(np.random.default_rng(0).choice(len(pictures.scan), count, replace=False))
    return f"<p>{count} drawn at random.</p>{pictures.cards(places.tolist())}"


def _duplicates(check: Check, pictures: _Pictures) -> str:
    scan = pictures.scan
    content = _groups("The same file", check.exact, equal_groups(scan.content), pictures)
    if check.near is not None:
        groups = near_groups(scan.look, scan.content, scan.one_colour)
        content += _groups("Other files that look alike", check.near, groups, pictures)
    return content


def _groups(title: str, found: Repetition, groups: Sequence[NDArray[np.int64]], pictures: _Pictures) -> str:
    if not groups:
        return f"<h3>{title}</h3><p>None.</p>"
    shown = "".join(pictures.group(group.tolist()) for group in groups[:_GROUPS])
    which = f"The {_GROUPS} largest of {len(groups):,} groups" if len(groups) > _GROUPS else "All groups"
    return (
        f"<h3>{title}</h3><p>{found.pictures:,} pictures repeat another one. {which}:</p>"
        f'<div class="groups">{shown}</div>'
    )


def _captions(check: Check, pictures: _Pictures) -> str:
    content = ""
    captions, scan = check.captions, pictures.scan
    if captions.repeated:
        repeated = [(f"{times:,} times", _short(text)) for text, times in captions.repeated]
        content += _table(("how often", "most repeated captions"), repeated)
    if captions.languages:
        named = [
            (name, f"{count:,} ({share(count, captions.guessed)})")
            for name, count in captions.languages.items()
        ]
        content += _table(("language, guessed", f"of {captions.guessed:,} captions"), named[:_ODD])
    cut = np.flatnonzero(scan.tokens > captions.context_length)
    longest = cut[np.argsort(-scan.tokens[cut], kind="stable")][:_ODD].tolist()
    if longest:
        texts = caption_texts(pictures.corpus, scan, longest)
        lines = "".join(f"<li>{_cut(text, captions.context_length)}</li>" for text in texts)
        content += f"<h3>The longest captions, and what the model does not read of them</h3><ul>{lines}</ul>"
    return content


def _cut(text: str, context_length: int) -> str:
    """A caption with the words struck that lie behind the last token that is read."""
    tokenizer = Tokenizer(TextConfig(context_length=MOST_TOKENS))
    words = text.split()
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        fits = int(tokenizer(" ".join(words[:middle])).argmax()) < context_length
        low, high = (middle, high) if fits else (low, middle - 1)
    return (
        f'{_text(" ".join(words[:low]))} <span class="beyond">{_text(_short(" ".join(words[low:])))}</span>'
    )


def _odd(check: Check, pictures: _Pictures) -> str:
    scan = pictures.scan
    shorter = np.minimum(scan.width, scan.height)
    long = np.maximum(scan.width, scan.height) / shorter
    kinds = (
        ("Smallest", np.argsort(shorter, kind="stable"), shorter.min() < shorter.max()),
        ("Most elongated", np.argsort(-long, kind="stable"), long.min() < long.max()),
        ("One colour only", np.flatnonzero(scan.one_colour), True),
        ("Largest files", np.argsort(-scan.size, kind="stable"), scan.size.min() < scan.size.max()),
    )
    return "".join(
        f"<h3>{title}</h3>{pictures.cards(places[:_ODD].tolist(), lambda place: f'{scan.size[place]:,} bytes, ')}"
        for title, places, worth in kinds
        if worth and len(places)
    )


def _broken(check: Check) -> str:
    kinds = (
        ("Shards", check.shards.broken),
        ("Uneven shards", [Fault(name, f"holds {count:,} samples") for name, count in check.shards.uneven]),
        ("Without picture or caption", check.lacking),
        ("Unreadable pictures", check.unreadable_pictures),
        ("Unreadable captions", check.unreadable_captions),
    )
    content = ""
    for title, faults in kinds:
        if faults:
            more = (
                f", the first {_LISTED} of {len(faults):,} (--output has all)"
                if len(faults) > _LISTED
                else ""
            )
            content += _table(
                (f"{title}{more}", "trouble"), [(fault.name, fault.reason) for fault in faults[:_LISTED]]
            )
    return content or "<p>Nothing.</p>"


def _table(heads: tuple[str, str], lines: Iterable[tuple[str, str]]) -> str:
    body = "".join(
        f"<tr><th scope=row>{_text(first)}</th><td>{_text(second)}</td></tr>" for first, second in lines
    )
    head = "".join(f"<th scope=col>{_text(one)}</th>" for one in heads)
    return (
        f'<figure class="table"><div class="scroll"><table class="words"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div></figure>"
    )


def _image(members: dict[str, bytes], name: str) -> str:
    picture = Image.fromarray(pixels_of(members, name).permute(1, 2, 0).contiguous().numpy())
    picture.thumbnail(_THUMBNAIL)
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=82)
    encoded = base64.b64encode(buffer.getvalue()).decode()
    return f'<img src="data:image/jpeg;base64,{encoded}" alt="" loading="lazy">'


def _named(sources: Sequence[str]) -> str:
    more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
    return f"{sources[0]}{more}"


def _short(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]} …"


def _text(text: str) -> str:
    return html.escape(text).replace(" %", "&nbsp;%")


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")

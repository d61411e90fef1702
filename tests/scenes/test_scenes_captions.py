"""Every caption is parsed with an independent grammar and compared with the objects' attributes."""

import re
from collections import Counter

import pytest

from diffclip.scenes import draw_scene
from diffclip.scenes.vocabulary import BACKGROUNDS, COLORS, SHAPES

COUNTS = {"a": 1, "an": 1, "one": 1, "a single": 1, "just one": 1, "two": 2, "three": 3, "four": 4}
PLURALS = {("crosses" if shape == "cross" else shape + "s"): shape for shape in SHAPES}
# the detail that a word before or after the noun names; None: the object has no detail
BEFORE = {word: word for word in ("glowing", "hollow", "half-filled", "cracked", "thin")}
BEFORE |= dict.fromkeys(("solid", "completely filled", "unbroken", "closed", "thick"))
AFTER = {f"with {word}": word for word in ("four points", "eight points", "four petals", "rounded corners")}
AFTER |= {
    "with a spot in its middle": "spot",
    "with a smiling face": "face",
    "with a thick border": "border",
    "with a gap": "gap",
    "seen from the side": "side",
    "seen from close up": "near",
    "seen from far away": "far",
}
AFTER |= dict.fromkeys(f"without a {word}" for word in ("spot", "face", "border"))
AFTER |= dict.fromkeys(f"with {word}" for word in ("five points", "six petals", "sharp corners"))
AFTER |= dict.fromkeys(("that does not glow", "seen from the front"))
STANDING = {"upright": "up", "upside-down": "down"}
POINTING = {f"pointing {way}": way for way in ("up", "down", "left", "right")}
POINTING |= {"opening upwards": "up", "opening downwards": "down"}
POINTING |= {f"opening to the {way}": way for way in ("left", "right")}
CORNERS = [f"at the {end} {side}" for end in ("top", "bottom") for side in ("left", "right")]
PLACES = (*CORNERS, "at the top", "at the bottom", "on the left", "on the right", "in the middle")
RELATIONS = ("to the left of", "to the right of", "above", "below")


def any_of(words):
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


THING = re.compile(
    rf"\b(?P<count>{any_of(COUNTS)}) "
    r"((?P<size>small|medium-sized|large) )?"
    r"((?P<texture>plain|striped|dotted|checked) )?"
    rf"((?P<before>{any_of(BEFORE)}) )?"
    rf"((?P<standing>{any_of(STANDING)}) )?"
    rf"((?P<color>{any_of(COLORS)}) )?"
    rf"(?P<noun>{any_of([*SHAPES, *PLURALS])})\b"
    rf"( (?P<pointing>{any_of(POINTING)}))?"
    rf"( (?P<after>{any_of(AFTER)}|with the (letter|word) [A-Z]+ on it))?"
    rf"( (?P<place>{any_of(PLACES)}))?"
)
GROUNDS = {phrase: name for name, entry in BACKGROUNDS.items() for phrase in entry.phrases}
GROUND = re.compile(rf"\b({any_of(GROUNDS)})\b")
# captions with each object replaced by X and the background by G
FORM = re.compile(
    r"(a picture of |a drawing of |a picture with |there (is|are) )?"
    rf"(X (?P<relation>{any_of(RELATIONS)}) X|X(, X)*( and X)?)( G)?"
    r"|G, X(, X)*( and X)?"
    rf"|(?P<place>{any_of(PLACES)}) there is X( G)?"
    rf"|(?P<count>\w+) ((?P<color>{any_of(COLORS)}) )?(shapes|objects)( G)?: X(, X)*( and X)?"
    rf"|X( G)?, (?P<colors>((one|two|three) ({any_of(COLORS)})(, | and )?)+)"
)


def matching(scene, form):
    """The objects that a noun phrase could mean."""
    attributes = {
        "shape": PLURALS.get(form["noun"], form["noun"]),
        "size": form["size"] and form["size"].removesuffix("-sized"),
        "texture": form["texture"],
        "color": form["color"],
        "orientation": STANDING.get(form["standing"]) or POINTING.get(form["pointing"]),
    }
    wanted = [(name, value) for name, value in attributes.items() if value is not None]
    if form["texture"] == "plain":
        wanted.append(("detail", None))
    if form["before"]:
        wanted.append(("detail", BEFORE[form["before"]]))
    if form["after"]:
        letters = form["after"].removeprefix("with the ").removesuffix(" on it")
        wanted.append(("detail", AFTER.get(form["after"], letters)))
    return [thing for thing in scene.objects if all(getattr(thing, name) == value for name, value in wanted)]


def check_place(scene, thing, place):
    size = len(scene.image)
    x, y = thing.center[0] / size, thing.center[1] / size
    spans = {
        "left": x < 0.4,
        "right": x > 0.6,
        "top": y < 0.4,
        "bottom": y > 0.6,
        "middle": max(abs(x - 0.5), abs(y - 0.5)) < 0.1,
    }
    assert all(holds for word, holds in spans.items() if word in place)


def check_thing(scene, match):
    """Check a noun phrase: its words, its grammar, and that its count is the number of objects it matches."""
    text, groups = match.group(), match.groupdict()
    count = COUNTS[groups["count"]]
    assert (groups["noun"] in PLURALS) == (count > 1), text
    if groups["count"] in ("a", "an"):
        assert (text.split()[1][0] in "aeiou") == (groups["count"] == "an"), text
    things = matching(scene, groups)
    assert len(things) == count, text
    if groups["place"]:
        for thing in things:
            check_place(scene, thing, groups["place"])
    return things


def check_relation(first, second, relation):
    if relation in ("to the right of", "below"):
        first, second = second, first
    axis = 0 if "to the" in relation else 1
    assert first.center[axis] < second.center[axis]
    assert first.box[axis + 2] <= second.box[axis], "not clearly so"


def check(scene, caption):
    assert all(GROUNDS[ground] == scene.background for ground in GROUND.findall(caption))
    text = GROUND.sub("G", caption)
    things = [check_thing(scene, match) for match in THING.finditer(text)]
    listed = [thing for group in things for thing in group]
    assert len({id(thing) for thing in listed}) == len(listed), "something is listed twice"
    form = FORM.fullmatch(THING.sub("X", text))
    assert form, "not a sentence"
    assert not re.search(r"there (is (two|three|four)|are an?) ", caption)
    if form["relation"]:
        check_relation(*listed, form["relation"])
    if form["place"]:
        check_place(scene, *listed, form["place"])
    if form["count"]:
        assert COUNTS[form["count"]] == len(listed) == len(scene.objects)
        assert form["color"] is None or {thing.color for thing in listed} == {form["color"]}
    if form["colors"]:
        parts = [part.split() for part in re.split(r", | and ", form["colors"])]
        assert {color: COUNTS[number] for number, color in parts} == Counter(thing.color for thing in listed)
        assert len(listed) == len(scene.objects)


@pytest.mark.parametrize(("style", "count"), [("plain", 600), ("sketch", 200)])
def test_captions_are_true_and_grammatical_and_mostly_distinct(style, count):
    captions = set()
    for index in range(count):
        scene = draw_scene(index, split="test", size=32, style=style)
        assert len(scene.captions) == len(set(scene.captions)) == 5
        captions |= {*scene.captions}
        for caption in scene.captions:
            check(scene, caption)
    if style == "plain":
        assert len(captions) > 0.85 * 5 * count

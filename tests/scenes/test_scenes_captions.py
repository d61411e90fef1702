"""Every caption is read back by a grammar of its own and held against the objects' attributes."""

import re

import pytest

from diffclip.scenes import BACKGROUNDS, COLORS, SHAPES, draw_scene

COUNTS = {"a": 1, "an": 1, "one": 1, "a single": 1, "just one": 1, "two": 2, "three": 3, "four": 4}
PLURALS = {("crosses" if shape == "cross" else shape + "s"): shape for shape in SHAPES}
# the detail that a word before or after the noun tells of; None: that there is none
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
RELATIONS = (" to the left of ", " to the right of ", " above ", " below ")


def any_of(words):
    return "|".join(sorted(map(re.escape, words), key=len, reverse=True))


THING = re.compile(
    rf"(?P<count>{any_of(COUNTS)}) "
    r"((?P<size>small|medium-sized|large) )?"
    r"((?P<texture>plain|striped|dotted|checked) )?"
    rf"((?P<before>{any_of(BEFORE)}) )?"
    rf"((?P<standing>{any_of(STANDING)}) )?"
    rf"((?P<color>{any_of(COLORS)}) )?"
    rf"(?P<noun>{any_of([*SHAPES, *PLURALS])})"
    rf"( (?P<pointing>{any_of(POINTING)}))?"
    rf"( (?P<after>{any_of(AFTER)}|with the (letter|word) [A-Z]+ on it))?"
    rf"( (?P<place>{any_of(PLACES)}))?"
)
GROUNDS = {phrase: name for name, entry in BACKGROUNDS.items() for phrase in entry.phrases}
GROUND_END = re.compile(rf" ({any_of(GROUNDS)})$")


def matching(scene, said):
    """The objects that a noun phrase could mean."""
    told = {
        "shape": PLURALS.get(said["noun"], said["noun"]),
        "size": said["size"] and said["size"].removesuffix("-sized"),
        "texture": said["texture"],
        "color": said["color"],
        "orientation": STANDING.get(said["standing"]) or POINTING.get(said["pointing"]),
    }
    wanted = [(name, value) for name, value in told.items() if value is not None]
    if said["texture"] == "plain":
        wanted.append(("detail", None))
    if said["before"]:
        wanted.append(("detail", BEFORE[said["before"]]))
    if said["after"]:
        letters = said["after"].removeprefix("with the ").removesuffix(" on it")
        wanted.append(("detail", AFTER.get(said["after"], letters)))
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


def check_thing(scene, text):
    """One noun phrase: its words, its grammar, and that it counts exactly what it could mean."""
    match = THING.fullmatch(text)
    assert match, f"not a phrase: {text!r}"
    said = match.groupdict()
    count = COUNTS[said["count"]]
    assert (said["noun"] in PLURALS) == (count > 1), text
    if said["count"] in ("a", "an"):
        assert (text.split()[1][0] in "aeiou") == (said["count"] == "an"), text
    things = matching(scene, said)
    assert len(things) == count, text
    if said["place"]:
        for thing in things:
            check_place(scene, thing, said["place"])
    return things


def check_list(scene, text):
    parts = [part for piece in text.split(" and ") for part in piece.split(", ")]
    assert (" and " in text) == (len(parts) > 1), text
    found = [thing for part in parts for thing in check_thing(scene, part)]
    assert len({id(thing) for thing in found}) == len(found), f"something is told twice: {text!r}"
    return found


def check_relation(scene, text, relation):
    (one,), (two,) = (check_thing(scene, part) for part in text.split(relation))
    if relation.strip() in ("to the right of", "below"):
        one, two = two, one
    axis = 0 if "to the" in relation else 1
    assert one.center[axis] < two.center[axis], text
    assert one.box[axis + 2] <= two.box[axis], f"not clearly so: {text!r}"


def check_counted(scene, head, tail):
    """ "three shapes: …", "two red shapes: …" or "three stars, one red and two blue"."""
    words = head.split()
    assert COUNTS[words[0]] == len(scene.objects)
    if words[-1] in ("shapes", "objects"):
        if len(words) == 3:
            assert {thing.color for thing in scene.objects} == {words[1]}
        assert len(check_list(scene, tail)) == len(scene.objects)
    else:
        assert {thing.shape for thing in scene.objects} == {PLURALS[words[1]]}
        told = {}
        for part in re.split(r", | and ", tail):
            number, color = part.split()
            told[color] = COUNTS[number]
        colors = [thing.color for thing in scene.objects]
        assert told == {color: colors.count(color) for color in colors}


def check(scene, caption):
    text = caption
    match = GROUND_END.search(text)
    if match:
        assert GROUNDS[match.group(1)] == scene.background, caption
        text = text[: match.start()]
    opening = re.match(rf"({any_of(GROUNDS)}), ", text)
    if opening:
        assert GROUNDS[opening.group(1)] == scene.background, caption
        check_list(scene, text[opening.end() :])
        return
    frame = re.match(
        r"a picture of |a drawing of |a picture with |there is (?=an? )|there are (?=two|three|four)", text
    )
    if frame:
        text = text[frame.end() :]
    inverted = re.fullmatch(rf"({any_of(PLACES)}) there is (.*)", text)
    if inverted:
        (thing,) = check_thing(scene, inverted.group(2))
        check_place(scene, thing, inverted.group(1))
        return
    counted = re.fullmatch(
        rf"(\w+ (?:(?:{any_of(COLORS)}) )?(?:shapes|objects))(?: ({any_of(GROUNDS)}))?: (.*)", text
    ) or re.fullmatch(
        rf"(\w+ (?:{any_of(PLURALS)}))(?: ({any_of(GROUNDS)}))?, "
        rf"((?:(?:one|two|three) (?:{any_of(COLORS)})(?:, | and )?)+)",
        text,
    )
    if counted:
        head, ground, tail = counted.groups()
        assert ground is None or GROUNDS[ground] == scene.background
        check_counted(scene, head, tail)
        return
    for relation in RELATIONS:
        if relation in text and not re.search(r"opening to the (left|right)", text):
            check_relation(scene, text, relation)
            return
    check_list(scene, text)


@pytest.mark.parametrize(("style", "count"), [("plain", 600), ("sketch", 200)])
def test_every_caption_is_true_and_grammatical(style, count):
    for index in range(count):
        scene = draw_scene(index, split="test", size=32, style=style)
        assert len(scene.captions) == len(set(scene.captions)) == 5
        for caption in scene.captions:
            check(scene, caption)


def test_captions_tell_images_apart():
    scenes = [draw_scene(index, split="test", size=16) for index in range(600)]
    captions = [caption for scene in scenes for caption in scene.captions]
    assert len(set(captions)) > 0.85 * len(captions)

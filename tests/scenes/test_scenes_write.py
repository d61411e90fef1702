import io
import json
import multiprocessing
import subprocess
import sys
import tarfile

import numpy as np
import pytest
from PIL import Image

from diffclip.errors import InputError
from diffclip.scenes import draw_scene, write_scenes
from diffclip.scenes import write as module
from diffclip.scenes.vocabulary import COLORS, SHAPES, TEMPLATES

SETTINGS = {"size": 24, "train": 30, "val": 5, "test": 13, "seed": 7}


@pytest.fixture(scope="module", autouse=True)
def _few_pairs():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PAIRS", 2)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("scenes") / "set"
    assert write_scenes(path, **SETTINGS)
    return path


def members(path):
    with tarfile.open(path) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def lines(path):
    return path.read_text().split("\n")[:-1]


def test_captions_follow_the_layout(folder):
    root = folder / "captions"
    assert (root / "dataset_type.txt").read_text() == "retrieval\n"
    for split in ("train", "val", "test"):
        assert (root / split / "nshards.txt").read_text() == "1\n"
        files = members(root / split / "0.tar")
        assert len(files) == 4 * SETTINGS[split]
        scene, key = draw_scene(3, split=split, seed=7, size=24), "s0000003"
        assert files[f"{key}.txt"].decode().split("\n") == list(scene.captions)
        image = np.asarray(Image.open(io.BytesIO(files[f"{key}.jpg"]))).astype(int)
        assert np.abs(image - scene.image).mean() < 3
        mask = np.asarray(Image.open(io.BytesIO(files[f"{key}.mask.png"])))
        assert np.array_equal(mask, scene.index_mask)
        record = json.loads(files[f"{key}.json"])
        assert record["captions"] == list(scene.captions)
        assert [o["shape"] for o in record["objects"]] == [o.shape for o in scene.objects]
        assert record["objects"][0]["box"] == list(scene.objects[0].box)


@pytest.mark.parametrize(
    ("name", "split", "classes"),
    [
        ("shapes", "train", SHAPES),
        ("shapes-sketch", "test", SHAPES),
        ("shapes-noisy", "test", SHAPES),
        ("colours", "test", COLORS),
        ("counts", "test", ("two", "three", "four")),
    ],
)
def test_classes_follow_the_layout(folder, name, split, classes):
    root, count = folder / name, 12 if split == "train" else 24
    assert lines(root / "classnames.txt") == list(classes)
    assert not (root / "dataset_type.txt").exists()
    files = members(root / split / "0.tar")
    keys = [f"s{index:07d}" for index in range(count)]
    labels = [int(files[f"{key}.cls"]) for key in keys]
    options = {"split": split, "seed": 7, "size": 24, "style": name.partition("-")[2] or "plain"}
    options |= {"objects": 4} if name == "counts" else {"objects": 1, "shape": SHAPES[5]}
    scene = draw_scene(5, **options)
    mask = np.asarray(Image.open(io.BytesIO(files["s0000005.mask.png"])))
    assert np.array_equal(mask, scene.index_mask)
    if name == "counts":
        assert labels == 8 * [0, 1, 2]
        return
    if name == "colours":
        assert list(classes)[labels[5]] == scene.objects[0].color
        shapes = members(folder / "shapes" / split / "0.tar")
        assert {key for key in files if files[key] != shapes[key]} <= {f"{key}.cls" for key in keys}
    else:
        assert labels == [*range(12)] * (count // 12), "as many of each shape"
    templates = [f"a single {{c}} {shape}" for shape in SHAPES] if name == "colours" else list(TEMPLATES)
    assert lines(root / "zeroshot_classification_templates.txt") == templates


def test_distractors_change_only_the_images_in_every_folder(folder, tmp_path):
    cluttered_folder = tmp_path / "cluttered"
    write_scenes(cluttered_folder, **SETTINGS, distractors=3)
    for name in ("captions", "shapes", "colours", "counts", "shapes-sketch"):
        plain, cluttered = (members(root / name / "test" / "0.tar") for root in (folder, cluttered_folder))
        changed = {key for key in plain if plain[key] != cluttered[key]}
        assert changed == {key for key in plain if key.endswith(".jpg")}, "captions, labels and masks stay"
    with pytest.raises(InputError, match="distractors 3"):
        write_scenes(cluttered_folder, **SETTINGS)


def test_same_settings_reuse_a_folder_and_others_are_refused(folder):
    before = contents(folder)
    assert not write_scenes(folder, **SETTINGS)
    assert contents(folder) == before
    with pytest.raises(InputError, match=r"other settings \(seed 7, train 30\).*choose another folder"):
        write_scenes(folder, **(SETTINGS | {"seed": 8, "train": 31}))
    assert contents(folder) == before


def test_workers_and_kills_do_not_change_the_files(folder, tmp_path):
    class Killed(BaseException):
        pass

    def kill(what, more, total):
        raise Killed

    target = tmp_path / "set"
    with pytest.raises(Killed):
        write_scenes(target, **SETTINGS, progress=kill)
    first = target / "captions" / "train" / "0.tar"
    modified = first.stat().st_mtime_ns
    steps = []
    assert write_scenes(target, **SETTINGS, progress=lambda *step: steps.append(step), workers=2)
    assert first.stat().st_mtime_ns == modified, "what was finished is kept"
    assert contents(target) == contents(folder)
    assert sum(count for _, count, _ in steps) == steps[0][2]
    (target / "shapes" / "test" / "0.tar").unlink()
    assert write_scenes(target, **SETTINGS)
    assert contents(target) == contents(folder), "a lost file is drawn again"


def test_concurrent_processes_draw_the_same_set_once(folder, tmp_path):
    context = multiprocessing.get_context("fork")
    drawn = context.SimpleQueue()

    def draw():
        drawn.put(write_scenes(tmp_path / "set", **SETTINGS))

    processes = [context.Process(target=draw) for _ in range(2)]
    for process in processes:
        process.start()
    assert sorted(drawn.get() for _ in processes) == [False, True]
    for process in processes:
        process.join()
    assert contents(tmp_path / "set") == contents(folder)


def test_scenes_need_no_torch():
    program = "import sys, diffclip.scenes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_large_sets_are_cut_into_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SHARD", 10)
    write_scenes(tmp_path / "set", **(SETTINGS | {"val": 1, "test": 1}))
    train = tmp_path / "set" / "captions" / "train"
    assert (train / "nshards.txt").read_text() == "3\n"
    keys = [name for number in range(3) for name in members(train / f"{number}.tar") if name.endswith(".txt")]
    assert keys == [f"s{index:07d}.txt" for index in range(30)]

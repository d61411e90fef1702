"""Bad input to every command: exit code 2, one line on stderr that names the input, and no file written."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import diffclip_command
from made_records import make_run
from made_sets import write_shard_of

# refused before torch and other heavy packages are imported; run/ has a checkpoint folder, empty/ has none
EARLY = {
    "trian": "No such command 'trian'",
    "train": "no recipe is given",
    "train x --epochs 3": "No such option",
    "train scenes_dema": "did you mean 'scenes_demo'",
    "train --resume --run run": "run has no run to resume: name a recipe",
    "classify gone.jpg --labels a,b --model gone.pt": "'gone.jpg' does not exist",
    "classify . --labels a,b --model gone.pt": "gone.pt does not exist",
    "classify . --labels a,b --model run": "folder . has no image",
    "push run mine": "give OWNER/NAME",
    "push CLIP-ViT-Ti-16 me/mine": "no weights to share",
    "attend . --model gone.pt --layers first": "layers 'first' is not last, all or the number of a layer",
    "attend . --model gone.pt --patch 2": "--patch 2 is not a row and a column: write two numbers",
    "attend . --model gone.pt --patch 2,5 --text dog": "--patch does not work with --method relevance",
    "attend . --model gone.pt --method relevance": "relevance is for a text",
    "attend . --model gone.pt --method A2 --text dog": "A2 knows no text",
    "attend . --model gone.pt --method sideways": "unknown method 'sideways': choose from: A1, A2,",
    "attend . --model gone.pt --method rollout --head 1": "rollout mixes all heads",
    "attend . --model run --model run/": "--model has a model twice",
    "attend . --model run --output figure.gif": "figure.gif should end in .png, .svg, .pdf or, for arrays",
    "explore": "run `diffclip demo` first, or give one with --model",
    "explore --model a --model b --model c": "3 models are too many: the page shows one or two",
    "explore --model run --auth ada": "no name or no password",
    "evaluate --suite scenes": "there is no model to measure: name a run folder",
    "evaluate gone.pt": "give --data with a folder or the name of a set, or --suite with one of scenes,",
    "evaluate gone.pt --data scenes": "gone.pt does not exist",
    "evaluate run nothing --data scenes": "unknown model 'nothing'",
    "evaluate gone.pt --suite scenes --data scenes": "--data and --suite exclude each other: leave one out",
    "evaluate gone.pt --suite scenes --split val": "--suite scenes has its own tasks and splits",
    "evaluate gone.pt --data scenes --skip-missing": "--skip-missing is for suites",
    "evaluate run --data nosuch": "unknown set 'nosuch'",
    "evaluate run --data cifar10": "needs --data-root FOLDER",
    "evaluate gone.pt --suite scene": "unknown suite 'scene': did you mean 'scenes'?",
    "evaluate gone.pt --data scenes --task zero": "unknown task 'zero': did you mean 'zero-shot'?",
    "study study_cpo": "unknown study 'study_cpo': did you mean 'study_cpu'",
    "study study_cpu --only nonsense": "unknown group of runs 'nonsense': choose from: ablations, models, sweep",
    "study study_cpu --pilot gone": "--pilot is for --dry-run",
    "study study_cpu --threads 0": "--threads: '0' is below 1",
    "study study_cpu --cluster pbs": "--cluster: 'pbs' is not one of 'slurm'",
    "vlm train --stage 1 vlm_scene": "did you mean 'vlm_scenes'",
    "vlm ask file ' ' --model run": "a question is empty",
    "vlm ask file '\udcff?' --model run": "the text '\\udcff?' is not UTF-8",
    "vlm evaluate run --data . --output new.jsonl --blind --images .": "leave --images out",
}


def test_arguments_and_names_are_checked_before_heavy_packages_are_imported(tmp_path: Path) -> None:
    code = (
        "import shlex, sys; from diffclip.cli.main import main\n"
        "for line in sys.argv[1:]:\n"
        "    sys.argv = ['diffclip', *shlex.split(line)]\n"
        "    try: main()\n"
        "    except SystemExit as stop: assert stop.code == 2, line\n"
        "    assert not {'torch', 'open_clip', 'matplotlib', 'pandas'} & set(sys.modules), line"
    )
    (tmp_path / "run/checkpoints/step_00000001").mkdir(parents=True)
    (tmp_path / "run/checkpoints/best").symlink_to("step_00000001")
    (tmp_path / "empty/checkpoints").mkdir(parents=True)
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    command = [sys.executable, "-c", code, *EARLY]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for (words, message), line in zip(EARLY.items(), done.stderr.splitlines(), strict=True):
        assert line.startswith("diffclip: "), words
        assert message in line, words
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture(scope="module")
def place(tmp_path_factory, model_folder, image_folder, class_set) -> Path:
    """A folder with photos, sets, a broken shard, a run, a model and files of no use."""
    folder = tmp_path_factory.mktemp("place")
    for name, target in {"model": model_folder, "colours": class_set}.items():
        (folder / name).symlink_to(target)
    shutil.copytree(image_folder, folder / "photos")
    (folder / "photos" / "empty").mkdir()
    (folder / "drawn" / "captions").mkdir(parents=True)
    (folder / "drawn" / ".lock").touch()
    for name in ("photos/text.txt", "broken.pt", "recipe.yaml"):
        (folder / name).write_text("nothing of use")
    (folder / "other.csv").write_text("image,caption\nx.jpg,y\n")
    write_shard_of(folder / "broken" / "0.tar", [("a", {"jpg": b"broken", "txt": b"a"})])
    make_run(folder / "run", "CLIP")
    return folder


LATER = [
    ("train recipe.yaml", "is neither a recipe nor a spec"),
    ("train recipe.yml", "recipe.yml does not exist: did you mean 'recipe.yaml'?"),
    ("train scenes_demo plugins=x.py", "plugins 'x.py' is not a list: write [x.py]"),
    ("train scenes_demo betas=[0,0,0]", "betas=[0,0,0]: [0, 0, 0] has too many items: give at most 2"),
    ("train scenes_demo data.val=3", "diffclip: data.val=3: 3 is not a text"),
    ("train study_cpu", "use `diffclip study`"),
    ("train scenes_demo epoch=2", "unknown recipe key 'epoch': did you mean 'epochs'?"),
    ("train scenes_demo data.train=absent --run new", "absent does not exist: give a folder of .tar shards"),
    ("train scenes_demo --run photos", "photos holds other files: choose a new or an empty folder"),
    ("train scenes_demo --run drawn", "drawn holds other files: choose a new or an empty folder"),
    (
        "train scenes_demo loggers=[mlflow]",
        "unknown logger 'mlflow': a plugin registers it: --plugin FILE.py",
    ),
    ("train scenes_demo freeze=visual", "freeze=visual: 'visual' is not a list: write [visual]"),
    ("train scenes_demo --devices two", "--devices two is not a number of processes"),
    ("train scenes_demo --json", "--json belongs to --dry-run"),
    ("train scenes_demo model=DiffCLIP-ViT-B-16", "has sizes of its own: leave architecture out"),
    ("study study_cpu --data gone", "folder gone does not exist: name the one that holds the sets"),
    ("study study_cpu models.arms.CLIP.chnage=1", "did you mean 'models.arms.NAME.change'?"),
    ("study flickr8k_cpu", "is not a study, as it has no `models`"),
    (
        "study study_cpu workers=2",
        "unknown study key 'workers': choose from: title, endpoints, contrasts, test,",
    ),
    ("study study_d --only sweep", "--only sweep: "),
    ("study study_cpu --cluster slurm --slurm cpus_per_task=four", "give a whole number of CPUs"),
    ("evaluate model --data colours --plugin photos/red.png", "the name of a plugin ends with .py"),
    ("study study_cpu models.seeds=[]", "models.seeds=[]: [] has too few items: give at least 1"),
    ("classify photos --labels other.csv --model model", "right: give two or more, or @FILE for a file"),
    ("classify photos --labels a,b --model model --template x", "'x' has no place for the label: write {c}"),
    ("attend photos/red.png --model model --output photos/red.png", "is an input, which would be lost"),
    ("attend photos --model model --head 2", "DiffCLIP has no head 2: its vision layers have heads 1 to 1"),
    ("attend photos --model model --patch 3,3", "DiffCLIP has no patch in row 3, column 3: both are"),
    ("evaluate model --data colours --task retrieval", "colours is a set for classification"),
    ("evaluate model --data absent/set", "absent/set is not a folder: give one in"),
    ("evaluate model --suite paper --data-root gone", "--data-root gone is not a folder: name the one that"),
    ("evaluate model --data colours --device cuda:99", "device 'cuda:99' is not available"),
    ("evaluate model --data colours --prompt 'a {c}'", "'a {c}' is for focus and faithfulness: add --task"),
    ("evaluate model --data colours --prompt cat", "'cat' has no place for the object's name: write {c}"),
    ("evaluate model --data colours --task few-shot", "has no train split, which few"),
    (
        "evaluate openclip:ViT-B-32/x --data colours",
        "unknown kind of model 'openclip:': did you mean 'open_clip:'?",
    ),
    # the output is checked before the model is loaded
    ("evaluate broken.pt --data colours --output photos", "cannot write photos: "),
    ("evaluate broken.pt --data colours --output other.csv", "other.csv: records are written as JSON lines"),
    ("evaluate broken.pt --data colours --output recipe.yaml", "line 1 is not a record: it is not JSON"),
    ("evaluate broken.pt --data colours --output /dev/null", "/dev/null is not a regular file"),
    ("convert CLIP-ViT-B-16 x", "no weights"),
    (
        "convert recipe.yaml x",
        "recipe.yaml is not a file of torch.save, is damaged, or holds more than tensors",
    ),
    ("convert model broken.pt", "broken.pt exists: give another name"),
    ("convert model photos", "photos is not empty"),
    ("convert model x.pt --transformers", "the published layout cannot hold a model of --transformers"),
    ("convert model new --seed 1", "--seed needs --to-differential"),
    # refused before models are downloaded
    ("vlm train --stage 1 vlm_qwen05b_stage1 --run new", "558k.json does not exist: give stage1.json=FILE"),
    ("report photos --output r.html --format pdf", "--format pdf is for --figures without --markdown"),
    ("report photos --output r.html", "photos has no records"),
    ("report photos/empty --output x.html", "no run there has made its first step"),
    ("bench --device meta", "use cpu or cuda"),
    ("data check broken --workers 1", "none of 1 samples"),
    ("data check broken --output broken/0.tar", "would replace a shard"),
    ("data download cifar --root new", "unknown published set 'cifar': did you mean 'cifar10'"),
    ("data make-scenes new --size 1000000", "size 1000000 is too large"),
    ("data make-scenes new --val 0", "val 0 is too few"),
    ("data make-scenes drawn", "drawn holds other things (captions)"),
    ("data make-scenes other.csv", "a file or folder of that name is in the way"),
    ("data make-shards none new", "none is not a folder"),
    ("data make-shards photos new", "has no file of captions: name one"),
    ("data make-shards photos new --captions other.csv", "none of 1 images is in"),
]


@pytest.mark.parametrize(("words", "message"), LATER)
def test_bad_input_is_refused_in_one_line_and_writes_nothing(words: str, message: str, place: Path) -> None:
    before = sorted(place.rglob("*"))
    done = diffclip_command(*shlex.split(words), cwd=place)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("diffclip: ")
    assert message in line
    assert sorted(place.rglob("*")) == before

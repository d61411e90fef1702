"""A program that does what img2dataset does with the options that it is given here, and writes them down."""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAM = """#!{python}
import csv, io, json, os, sys, tarfile, time, urllib.request
from pathlib import Path

words = sys.argv[1:]
options = dict(zip((word[2:] for word in words[::2]), words[1::2], strict=True))
folder = Path(options["output_folder"])
with open(os.environ["FAKE_CALLS"], "a") as calls:
    calls.write(json.dumps(options) + "\\n")
print("fake img2dataset starts", flush=True)
if os.environ.get("FAKE_CODE"):
    print("ValueError: the list is odd", file=sys.stderr)
    sys.exit(int(os.environ["FAKE_CODE"]))
done = {{int(path.name.split("_")[0]) for path in folder.glob("*.json")}}
with open(options["url_list"], newline="") as file:
    rows = list(csv.DictReader(file, delimiter="\\t"))
size = int(os.environ.get("FAKE_SHARD", 10000))
for shard in range(-(-len(rows) // size)):
    if shard in done:
        continue
    stats = {{"count": 0, "successes": 0, "failed_to_download": 0, "failed_to_resize": 0, "status_dict": {{}}}}
    with tarfile.open(folder / f"{{shard:05d}}.tar", "w") as tar:
        for number, row in enumerate(rows[shard * size : (shard + 1) * size]):
            stats["count"] += 1
            try:
                picture = urllib.request.urlopen(row[options["url_col"]]).read()
                status = "success"
                stats["successes"] += 1
            except Exception as error:
                status = str(error)
                stats["failed_to_download"] += 1
            stats["status_dict"][status] = stats["status_dict"].get(status, 0) + 1
            if status == "success":
                for ending, data in (("jpg", picture), ("txt", row[options["caption_col"]].encode())):
                    info = tarfile.TarInfo(f"{{shard:05d}}{{number:04d}}.{{ending}}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        # some are left in the middle of a shard
        if shard == int(os.environ.get("FAKE_HANG", -1)):
            Path(os.environ["FAKE_CALLS"] + ".hangs").touch()
            time.sleep(600)
    (folder / f"{{shard:05d}}_stats.json").write_text(json.dumps(stats))
"""


def write_program(path: Path) -> Path:
    """The program, at `path`. `FAKE_CALLS` names the file of its options, a line a call.

    `FAKE_SHARD` is the number of pairs a shard, `FAKE_CODE` an exit code to fail with, `FAKE_HANG` the number of the
    shard in which it stays; the file `FAKE_CALLS`.hangs says that it does.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PROGRAM.format(python=sys.executable))
    path.chmod(0o755)
    return path

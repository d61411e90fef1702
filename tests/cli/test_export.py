"""`diffclip export`: the printed lines, config.json and the tokenizer file."""

import json

from in_process import diffclip_command

from diffclip.config import TextConfig
from diffclip.tokenizer import Tokenizer


def test_export_prints_a_line_per_tower_and_writes_a_tokenizer(tmp_path, model_folder, monkeypatch) -> None:
    """tests/convert/test_onnx_export.py tests the towers themselves."""
    from tokenizers import Tokenizer as Fast

    written = bytes(10**5)
    monkeypatch.setattr("diffclip.convert.onnx._write_tower", lambda _, file: file.write_bytes(written))
    monkeypatch.setattr("diffclip.convert.onnx._check", lambda *_: 2e-7)
    folder = tmp_path / "onnx"
    done = diffclip_command("export", model_folder, folder)
    assert done.returncode == 0
    assert all(" left: " in line for line in done.stderr.splitlines())  # progress lines, on a slow machine
    wanted = [f"{folder}/{tower}.onnx: 0.1 MB, error 2e-07" for tower in ("image", "text")]
    assert done.stdout.splitlines() == wanted
    settings = json.loads((folder / "config.json").read_text())["text"]["tokenizer"]
    ours, texts = Tokenizer(TextConfig(context_length=12)), ["A dog!", "a very long text " * 9]
    fast = Fast.from_file(str(folder / settings["file"]))
    for text, row in zip(texts, ours(texts).tolist(), strict=True):
        ids = fast.encode(text).ids
        assert row[: len(ids)] == ids
        assert (ids[0], ids[-1]) == (settings["start"], settings["end"])
        assert set(row[len(ids) :]) <= {settings["padding"]}
    encodings = fast.encode_batch(texts)
    assert [len(encoding.ids) for encoding in encodings] == [12, 12]
    assert encodings[0].ids == ours(texts)[0].tolist()

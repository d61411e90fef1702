"""Our models under mteb's image benchmark, on a set that the test makes. Skipped without mteb."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import diffclip
from diffclip import InputError
from diffclip.data.open_set import open_set

mteb = pytest.importorskip("mteb")
datasets = pytest.importorskip("datasets")


def metadata(name: str, kind: str, scenes: Path) -> Any:
    from mteb.abstasks.task_metadata import TaskMetadata

    return TaskMetadata(
        name=name,
        dataset={"path": str(scenes), "revision": "1"},
        description="Scenes that the test draws.",
        type=kind,
        category="i2t",
        modalities=["image", "text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="accuracy",
        reference=None,
        date=None,
        domains=None,
        task_subtypes=None,
        license=None,
        annotations_creators=None,
        dialect=None,
        sample_creation=None,
        bibtex_citation=None,
    )


def test_mteb_gives_our_accuracy_and_takes_pairs(model_folder: Path, scenes: Path) -> None:
    from mteb.abstasks import AbsTaskZeroShotClassification
    from mteb.abstasks.image import AbsTaskImageTextPairClassification

    from diffclip.integrations.mteb import MTEBModel

    colors = open_set(scenes / "colours", "test")
    images = [colors.source.image(i) for i in colors.indices]
    template = colors.templates[0]

    class Colors(AbsTaskZeroShotClassification):
        metadata = metadata("Colors", "ZeroShotClassification", scenes)

        def load_data(self, **_: Any) -> None:
            table = datasets.Dataset.from_dict({"image": images, "label": colors.labels})
            self.dataset, self.data_loaded = datasets.DatasetDict({"test": table}), True

        def get_candidate_labels(self) -> list[str]:
            return [template.replace("{c}", name) for name in colors.classnames]

    class Pairs(AbsTaskImageTextPairClassification):
        metadata = metadata("Pairs", "Compositionality", scenes)
        texts_column_names = ("true", "false")

        def load_data(self, **_: Any) -> None:
            names = colors.classnames
            true = [names[label] for label in colors.labels]
            false = [names[label - 1] for label in colors.labels]
            table = datasets.Dataset.from_dict({"image": images, "true": true, "false": false})
            self.dataset, self.data_loaded = datasets.DatasetDict({"test": table}), True

    model = MTEBModel(str(model_folder))
    assert model.mteb_model_meta.name == "diffclip/DiffCLIP-v16x1x2p8-t16x1x2"
    results = mteb.evaluate(model, [Colors(), Pairs()], cache=None, show_progress_bar=False)
    found = {result.task_name: result.scores["test"][0] for result in results.task_results}
    ours = diffclip.evaluate(model_folder, "zero-shot", replace(colors, templates=[template]))
    assert found["Colors"]["accuracy"] == pytest.approx(ours[0].value, abs=1e-9)
    assert 0 <= found["Pairs"]["image_acc"] <= 1
    both = model.encode([{"image": images[:2], "text": ["a cat", "a dog"]}])
    alone = model.encode([{"image": images[:2]}]) + model.encode([{"text": ["a cat", "a dog"]}])
    torch.testing.assert_close(both, alone)
    with pytest.raises(InputError, match="mteb gives audio"):
        model.encode([{"audio": []}])

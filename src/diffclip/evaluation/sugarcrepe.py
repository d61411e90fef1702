"""SugarCrepe: is the true caption of an image nearer than a hard negative? Hsieh et al. (2023), arXiv:2306.14610.

As in the published script (RAIVNLab/sugar-crepe, `main_eval.py`), the captions have no template and a tie is wrong.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from diffclip.data.published_files import ChoiceSet
from diffclip.evaluation.embed import Setting
from diffclip.evaluation.scores import Score, class_mean_score, mean_score, with_facts


def sugarcrepe(setting: Setting[ChoiceSet]) -> list[Score]:
    """Measure `average`, the mean of the files' accuracies, and the accuracy of each file by its name.

    Items of one image are resampled together. Outcomes of `average` are weighted so that each file counts the same.

    Raises:
        InputError: no image can be read, or an embedding is not finite.
    """
    images, positions = setting.image_features()
    places = {position: place for place, position in enumerate(positions)}
    asked = [choice for choice in setting.data.choices if choice.image in places]
    captions = dict.fromkeys(text for choice in asked for text in (choice.caption, choice.negative))
    index, texts = {text: i for i, text in enumerate(captions)}, setting.text_features(list(captions))
    shown = images[[places[choice.image] for choice in asked]].double()
    own, other = (
        (shown * texts[[index[text] for text in side]].double()).sum(-1)
        for side in zip(*((choice.caption, choice.negative) for choice in asked), strict=True)
    )
    hits = torch.gt(own, other).double().cpu().numpy()
    names, files = np.unique([choice.file for choice in asked], return_inverse=True)
    images_of = np.array([choice.image for choice in asked])
    average = class_mean_score("average", hits, files, 0.5, images_of)
    weighted = hits * (len(hits) / len(names) / np.bincount(files))[files]
    scores = [replace(average, hits=weighted, clusters=images_of, facts={"of": tuple(names.tolist())})]
    for number, name in enumerate(names.tolist()):
        own_file = files == number
        scores.append(mean_score(name, hits[own_file], 0.5, images_of[own_file]))
    method = "the caption must be nearer to the image than the negative one; ties count against"
    return with_facts(scores, protocol=method)

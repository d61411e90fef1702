"""Names of tasks, sets, metrics and maps, with their labels for people. Imports no package."""

from typing import Literal, NamedTuple, get_args

TASKS = {
    "zero-shot": "zero-shot",
    "retrieval": "retrieval",
    "linear-probe": "linear probe",
    "few-shot": "few-shot",
    "mmvp": "minimal pairs",
    "sugarcrepe": "SugarCrepe",
    "focus": "focus",
    "faithfulness": "faithfulness",
    "segmentation": "segmentation",
    "mechanics": "mechanics",
    "robustness": "robustness",
}
"""The tasks of `diffclip evaluate`."""
OTHER_TASKS = {
    "pope": "POPE",
    "pope-blind": "blind POPE",
    "out-of-domain": "out of domain",
    "six-tasks": "means over sets",
}
"""Names of records that are no tasks of `diffclip evaluate`."""
Group = Literal["sweep", "models", "ablations"]
GROUPS: tuple[Group, ...] = get_args(Group)
"""The groups of a study's runs, in the order of the runs."""
DATASETS = {
    "caltech101": "Caltech-101",
    "dtd": "DTD",
    "pets": "Pets",
    "flowers": "Flowers",
    "sun397": "SUN397",
    "fgvc_aircraft": "Aircraft",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "food101": "Food-101",
    "flickr30k": "Flickr30k",
    "flickr8k": "Flickr8k",
    "mscoco_captions": "COCO",
    "imagenet1k": "ImageNet",
    "imagenetv2": "ImageNet-V2",
    "imagenet-a": "ImageNet-A",
    "imagenet-r": "ImageNet-R",
    "imagenet_sketch": "ImageNet-Sketch",
    "oxford_pets3": "Oxford Pets (masks)",
    "mmvp": "MMVP-VLM",
    "scenes-mmvp": "scenes (pairs)",
    "sugarcrepe": "COCO val2017",
    "scenes-sugarcrepe": "scenes",
    "scenes-segmentation": "scenes",
    "coco_mini": "COCO (80 images)",
}


class Metric(NamedTuple):
    """A metric: its label; 1 if larger values are better, −1 if smaller ones are, 0 if neither; and the limits of its
    values, (0, 1) for a share, which is shown in percent."""

    label: str
    better: int = 1
    bounds: tuple[float, float] | None = (0.0, 1.0)


METRICS = {
    "acc1": Metric("top-1"),
    "acc5": Metric("top-5"),
    "mean_per_class_recall": Metric("mean per class"),
    "pair_accuracy": Metric("pair accuracy"),
    "mean_per_pattern_accuracy": Metric("pair accuracy, mean over patterns"),
    "statement_accuracy": Metric("statement accuracy"),
    "group_match": Metric("right matchings of a pair"),
    "mean_of_shifts": Metric("mean of the shifts"),
    "score": Metric("validation score"),
    "mean_recall": Metric("mean recall"),
    "f1": Metric("F1"),
    "yes_ratio": Metric("answers yes", 0),
    "neither_ratio": Metric("answers neither yes nor no", 0),
    "auroc": Metric("area under ROC"),
    "ap": Metric("average precision"),
    "inside": Metric("share on the object"),
    "inside_over_area": Metric("lift on the object", 1, None),
    "pointing": Metric("pointing game"),
    "deletion_auc": Metric("deletion (lower is better)", -1),
    "insertion_auc": Metric("insertion"),
    "class_token": Metric("share of the class token", 0),
    "entropy": Metric("entropy", 0),
    "effective_patches": Metric("effective patches", 0, None),
    "top10": Metric("share of the ten strongest patches", 0),
    "background10": Metric("share of the ten strongest background patches", -1),
    "adversarial_accuracy": Metric("accuracy under attack"),
    "noise_accuracy": Metric("accuracy under noise"),
    "attack_success": Metric("success of the attack", -1),
    "local_lipschitz": Metric("local Lipschitz estimate", -1, None),
    "mean_iou": Metric("mean IoU"),
    "pixel_accuracy": Metric("pixel accuracy"),
    "sink_ratio": Metric("sink ratio", 0, None),
    "sink_value_norm": Metric("value norm at the sink", 0, None),
    "high_norm_share": Metric("share of high-norm tokens", 0),
    "negative_weight": Metric("share of negative weight", 0),
    "gradient_cosine": Metric("cosine of the gradients of A1 and A2", 0, (-1.0, 1.0)),
    "lambda": Metric("λ", 0, None),
    "map_correlation": Metric("correlation of A1 and A2", 0, (-1.0, 1.0)),
    "noise_correlation": Metric("correlation of the changes of A1 and A2 with noise", 0, (-1.0, 1.0)),
    "head_redundancy": Metric("cosine of the heads' maps", 0, (-1.0, 1.0)),
    "output_redundancy": Metric("cosine of the heads' outputs", 0, (-1.0, 1.0)),
    "log2_compute": Metric("CLIP's compute for the same recall (log2)", 1, None),
    "log2_steps": Metric("CLIP's steps for the same recall (log2)", 1, None),
    "step_seconds": Metric("seconds per step", -1, None),
    "seconds": Metric("seconds of training", -1, None),
    "peak_memory": Metric("peak memory (bytes)", -1, None),
    "parameters": Metric("parameters", -1, None),
}


HEADLINES = {
    "retrieval": ("image_retrieval_recall@5", "text_retrieval_recall@5"),
    "mmvp": ("pair_accuracy",),
}
"""The metrics by which pages and cards show a task; other tasks show the first that they record, and linear probes the
one that chooses their cost."""
HEADLINE_EPSILON = 1.0  # the size of an attack, in 255ths, that pages and cards show


def metric_of(name: str) -> Metric:
    """Look up a metric; an unknown name is a share of which more is better."""
    return METRICS.get(name, Metric(name.replace("_", " ")))


MAPS = {"A1_minus_A2": "A1 − A2", "centre prior": "center prior"}

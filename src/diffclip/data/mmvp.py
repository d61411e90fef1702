"""The nine patterns of MMVP-VLM and where its images lie (Tong et al. 2024, arXiv 2401.06209; tsb0601/MMVP)."""

PATTERNS = (
    "Orientation and Direction",
    "Presence of Specific Features",
    "State and Condition",
    "Quantity and Count",
    "Positional and Relational Context",
    "Color and Appearance",
    "Structural Characteristics",
    "Texts",
    "Viewpoint and Perspective",
)
"""The patterns by their published names, in the published order."""

PAIR_IMAGES = "MLLM_VLM Images"
"""The folder of images, as the published script names it."""

"""Training: the recipe, the loop, and what a run leaves behind."""

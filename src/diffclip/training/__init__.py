"""Training: recipes, the loop, checkpoints and logs."""

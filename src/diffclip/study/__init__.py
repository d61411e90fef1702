"""A study: models × inits × seeds as a grid of runs, each with the same data order and budget for all models of a
seed, after a sweep that gives each kind of model the learning rate and the weight decay that suit it."""

"""A study: a grid of runs over models, inits and seeds. All models of a seed have the same data order and budget.
First, a sweep chooses the learning rate and the weight decay for each kind of model."""

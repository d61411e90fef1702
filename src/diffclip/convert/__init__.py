"""Convert models of other libraries to ours, and plain models to differential ones."""

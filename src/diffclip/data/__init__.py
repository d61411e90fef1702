"""Images and captions: shards, batches for training, and sets to evaluate on (see `docs/architecture.md`)."""

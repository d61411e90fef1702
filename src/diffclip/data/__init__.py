"""Pictures and captions: reading them, shards of them, batches of them, and the sets to evaluate on."""

"""Images and captions: shards of them, batches of them for training, and the sets to evaluate on.

`docs/architecture.md` follows a sample from its shard to the loss.
"""

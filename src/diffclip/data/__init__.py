"""Images and captions: shards of them, batches of them for training, and the sets to evaluate on.

A sample's way to the model, six files:

1. `index.py`: a tar shard is scanned once; its index says where the members of each sample lie.
2. `corpus.py`: the usable samples of all shards, by number; reads the captions and the image file of one of them.
3. `order.py`: the samples of each batch of an epoch, in numbers alone, drawn from (seed, epoch).
4. `images.py`: decodes an image file, uint8 [3, H, W].
5. `transforms.py`: crops and resizes it, uint8 [3, S, S], as drawn from (seed, epoch, sample); later normalizes.
6. `loader.py`: `CaptionLoader` takes these steps in data workers and collates the `Batch`, which the training loop
   copies to the device and normalizes there. `memory.py` is the same with all images decoded once.
"""

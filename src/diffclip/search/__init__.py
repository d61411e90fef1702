"""Search a folder of images by text or by image."""

from diffclip.search.index import Hit, ImageIndex, Update

__all__ = ["Hit", "ImageIndex", "Update"]

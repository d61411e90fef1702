"""A folder of pictures made searchable by text and by picture. Needs FAISS, the group `search`."""

from diffclip.search.index import Hit, PictureIndex, Update
from diffclip.search.lock import BusyError

__all__ = ["BusyError", "Hit", "PictureIndex", "Update"]

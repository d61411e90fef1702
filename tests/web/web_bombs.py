"""Files that cost their reader far more than they weigh."""

from __future__ import annotations

import io

from PIL import Image


def endless_jpeg(scans: int = 4000) -> bytes:
    """A progressive JPEG of 25 megapixels whose last scan, some bytes long, is there `scans` times."""
    buffer = io.BytesIO()
    Image.new("L", (5000, 5000), 128).save(buffer, "JPEG", progressive=True)
    content = buffer.getvalue()
    last = content.rindex(b"\xff\xda")
    # its Huffman table lies before it and holds for all that follow
    return content[:last] + content[last:-2] * scans + content[-2:]

"""Token ids in memory."""

from array import array
from typing import TypeAlias

TokenIds: TypeAlias = "array[int]"
"""Ids end to end as unsigned 32-bit numbers (``array("I")``): four bytes each, compared and cut at memory speed."""


def packed(data: bytes) -> TokenIds:
    """Ids from their packed form, little-endian u32, as plans and results carry them."""
    ids = array("I")
    ids.frombytes(data)
    return ids

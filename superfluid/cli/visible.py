"""Text from a log, made safe for a terminal.

A model, a tool or another program wrote it, and a terminal obeys control characters: it would move the cursor, rename
windows, or show a line other than what it is. Whatever is not to be obeyed is shown instead.
"""

import unicodedata
from typing import Final

_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

_TURNS_LINES: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Bidirectional embeddings and overrides, which make a line read as another one. (Joiners and marks, which emoji and
scripts need, belong to the same category and are left alone.)"""

_HIDDEN: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})


def visible(text: str, *, keep: str = "") -> str:
    """*text* with control characters as escapes, such as ``\\x1b``.

    Args:
        keep: Control characters that may pass, such as a line feed in a reply that is shown as it comes.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or not _is_control(c) else _NAMED.get(c) or _escape(c) for c in text)


def shortened(text: str, width: int) -> str:
    """The beginning of *text* in at most *width* characters, visible, with an ellipsis for what was cut."""
    shown = visible(text[: width + 1])
    return shown if len(text) <= width and len(shown) <= width else shown[: width - 1] + "…"


def _is_control(char: str) -> bool:
    return unicodedata.category(char) in _HIDDEN or char in _TURNS_LINES


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

"""Small rules about client text that every edge shares."""

from superfluid.core.errors import BadRequest


def check_text(text: str) -> str:
    """Return *text* if it can be written as UTF-8.

    JSON can carry half of a surrogate pair (``"\\ud83d"``), and ``json.loads`` lets it through. One in a
    log or in a history would make every later request of its session fail, so each edge calls this before
    any append.

    Raises:
        BadRequest: the text holds a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"the text has half of a surrogate pair at character {error.start}; "
            "it is not Unicode text and was refused (was a string cut inside an emoji?)"
        ) from None
    return text

"""The roles of messages: their numbers on the wire and the names that chat templates know them by."""

from enum import IntEnum

from superfluid.core.errors import BadRequest


class Role(IntEnum):
    """Who speaks. The numbers are the protocol's ("Numbers" in docs/protocol.md)."""

    SYSTEM = 0
    USER = 1
    ASSISTANT = 2
    TOOL = 3

    @property
    def template_name(self) -> str:
        """The name in a template's ``message["role"]``."""
        return self.name.lower()


def check_role(number: int) -> Role:
    """Return the role with this number.

    Raises:
        BadRequest: there is none.
    """
    try:
        return Role(number)
    except ValueError:
        known = ", ".join(f"{role.value} {role.template_name}" for role in Role)
        raise BadRequest(f"role {number} is unknown; the roles are {known}") from None

"""The roles of messages: their numbers on the wire, and the names that chat templates know them by."""

from superfluid.core.errors import BadRequest
from superfluid_protocol.numbers import Role

__all__ = ["Role", "check_role", "template_name"]


def template_name(role: Role) -> str:
    """Return the name in a template's ``message["role"]``."""
    return role.name.lower()


def check_role(number: int) -> Role:
    """Return the role with this number.

    Raises:
        BadRequest: there is none.
    """
    try:
        return Role(number)
    except ValueError:
        known = ", ".join(f"{role.value} {template_name(role)}" for role in Role)
        raise BadRequest(f"role {number} is unknown; the roles are {known}") from None

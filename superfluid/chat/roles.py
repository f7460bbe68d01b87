"""The roles of messages: their numbers on the wire, and the names that chat templates know them by."""

from superfluid.core.session import check_role
from superfluid_protocol.numbers import Role

__all__ = ["Role", "check_role", "template_name"]


def template_name(role: Role) -> str:
    """Return the name in a template's ``message["role"]``."""
    return role.name.lower()

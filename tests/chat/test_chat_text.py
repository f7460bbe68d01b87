import pytest

from superfluid.chat.roles import Role, check_role, template_name
from superfluid.chat.text import check_text
from superfluid.core.errors import BadRequest


@pytest.mark.parametrize("text", ["", "plain", "e\N{COMBINING ACUTE ACCENT}\U0001f600", "\0", "�"])
def test_well_formed_text_passes_unchanged(text):
    assert check_text(text) is text


@pytest.mark.parametrize("text", ["\ud83d", "ab\udc00", "\udc00\ud83d"])
def test_a_lone_surrogate_is_refused_without_quoting_the_text(text):
    with pytest.raises(BadRequest, match="half of a surrogate pair at character") as caught:
        check_text(f"secret {text}")

    assert "secret" not in str(caught.value)
    str(caught.value).encode()


def test_roles_have_the_numbers_of_the_wire_and_the_names_of_templates():
    assert [(check_role(number), template_name(check_role(number))) for number in range(4)] == [
        (Role.SYSTEM, "system"),
        (Role.USER, "user"),
        (Role.ASSISTANT, "assistant"),
        (Role.TOOL, "tool"),
    ]


@pytest.mark.parametrize("number", [-1, 4, 2**32 - 1])
def test_an_unknown_role_is_refused_with_the_known_ones(number):
    with pytest.raises(BadRequest, match=rf"role {number} is unknown; the roles are 0 system, 1 user"):
        check_role(number)

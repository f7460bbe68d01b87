"""Where daemon and clients meet."""

from pathlib import Path

import pytest

from superfluid_protocol import address


@pytest.mark.parametrize(
    ("environ", "home"),
    [
        ({"SUPERFLUID_HOME": "/srv/s", "HOME": "/h"}, "/srv/s"),
        ({"SUPERFLUID_HOME": "", "HOME": "/h"}, "/h/.superfluid"),
        ({"HOME": "/h"}, "/h/.superfluid"),
        ({"HOME": ""}, "/.superfluid"),
        ({}, "/.superfluid"),
    ],
)
def test_everything_lives_in_one_directory(environ: dict[str, str], home: str):
    assert address.home(environ) == Path(home)
    assert address.default_socket(environ) == Path(home, "superfluid.sock")
    assert address.default_sessions(environ) == Path(home, "sessions")


def test_a_path_too_long_for_a_socket_has_a_short_one_of_the_same_user():
    fits = Path("/" + "x" * (address.SUN_PATH_BYTES - 2))
    longer = Path(f"{fits}x")

    assert address.socket_path(fits, 7) == fits
    short = address.socket_path(longer, 7)
    assert short == address.socket_path(longer, 7)
    assert short.parent == Path("/tmp/superfluid-7")
    assert len(bytes(short)) < address.SUN_PATH_BYTES
    assert short != address.socket_path(Path(f"{longer}x"), 7)

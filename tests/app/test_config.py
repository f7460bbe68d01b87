"""Settings of the daemon that are more than a number."""

import pytest

from superfluid.app.config import ServeConfig, parse_class_lanes
from superfluid_protocol.numbers import Qos


def config(tmp_path, **settings):
    return ServeConfig(model="m", sessions=tmp_path, socket=tmp_path / "s", **settings)


@pytest.mark.parametrize(
    ("text", "caps"),
    [
        ("background=2,agent=6", {Qos.BACKGROUND: 2, Qos.AGENT: 6}),
        (" interactive = 1 , completion = 64 ", {Qos.INTERACTIVE: 1, Qos.COMPLETION: 64}),
    ],
)
def test_lanes_of_classes_are_read(text, caps):
    assert parse_class_lanes(text) == caps


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is not of the form class=lanes"),
        ("background", "'background' is not of the form class=lanes, such as background=2"),
        ("agent=2,", "'' is not of the form"),
        ("batch=2", "no class 'batch'; the classes are interactive, completion, agent, background"),
        ("agent=2,agent=3", "agent is given twice"),
        ("agent=0", "'0' is no number of lanes for agent: 1 or more"),
        ("agent=-1", "'-1' is no number of lanes"),
        ("agent=two", "'two' is no number of lanes"),
        ("agent=²", "is no number of lanes"),
    ],
)
def test_what_is_wrong_with_them_is_said(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_class_lanes(text)


def test_a_class_may_take_every_lane_unless_it_is_named(tmp_path):
    caps = config(tmp_path, max_batch=4, class_lanes={Qos.BACKGROUND: 2, Qos.AGENT: 6}).class_caps()

    assert caps == (4, 4, 4, 2)

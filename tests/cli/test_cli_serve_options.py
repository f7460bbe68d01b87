"""The options of `serve`: what they are refused for, and that each one arrives where it is meant to."""

import dataclasses

import pytest

from superfluid.app.config import ServeConfig
from superfluid.cli import main, serve
from superfluid.cli.serve_options import ABOUT_THE_PROCESS
from superfluid_protocol.numbers import Qos


@pytest.fixture
def asked(monkeypatch):
    """Run `serve` up to where the daemon would be made; what it would be made of."""

    def ask(*args):
        configs = []
        monkeypatch.setattr(serve, "_run", lambda config, _filter: configs.append(config))
        assert main.run(["serve", "m", *args]) == 0
        (made,) = configs
        return made

    return ask


def test_every_option_is_a_setting_and_every_setting_an_option():
    options = {param.name for param in serve.serve.params} - {*ABOUT_THE_PROCESS, "model"}

    assert options == {field.name for field in dataclasses.fields(ServeConfig)} - {"model"}


def test_the_defaults_are_those_of_the_configuration(asked):
    made = asked()

    assert made == ServeConfig(model="m", sessions=made.sessions, socket=made.socket)


def test_each_option_arrives(asked):
    made = asked(
        *("--max-batch", "4", "--kept-sequences", "3", "--class-lanes", "background=2,agent=6"),
        *("--starvation-ticks", "5", "--prefill-budget", "512", "--tick-target-ms", "40"),
        *("--pressure-high", "90", "--pressure-low", "60", "--pin-budget-pct", "20", "--coalesce-min", "64"),
        *("--speculate", "off", "--host-memory-gb", "0.5", "--park", "--park-budget-gb", "0"),
    )

    assert made.class_lanes == {Qos.BACKGROUND: 2, Qos.AGENT: 6}
    assert (made.max_batch, made.kept_sequences, made.starvation_ticks) == (4, 3, 5)
    assert (made.prefill_budget, made.tick_target_ms, made.coalesce_min) == (512, 40, 64)
    assert (made.pressure_high, made.pressure_low, made.pin_budget_pct) == (90, 60, 20)
    assert (made.speculate, made.host_memory_gb) == ("off", 0.5)
    assert (made.park, made.park_budget_gb, made.park_lossy) == (True, 0, False)


def test_lossy_parking_is_parking(asked):
    assert asked("--park-lossy").park


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--class-lanes", "agent"], "not of the form class=lanes"),
        (["--class-lanes", "agents=2"], "there is no class 'agents'"),
        (["--pressure-low", "90"], "--pressure-low 90 is above --pressure-high 85"),
        (["--starvation-ticks", "0"], "--starvation-ticks"),
        (["--pressure-high", "101"], "--pressure-high"),
        (["--speculate", "yes"], "'auto', 'prompt-lookup', 'off'"),
        (["--host-memory-gb", "-1"], "--host-memory-gb"),
        (["--exact", "--park-lossy"], "--exact could never go on from it: use --park"),
        (["--park", "--host-memory-gb", "0"], "--park needs host memory"),
    ],
)
def test_a_wrong_value_is_a_usage_error_that_says_why(capsys, args, reason):
    assert main.run(["serve", "m", *args]) == 2

    told = capsys.readouterr().err
    assert reason in told
    assert len(told.splitlines()) == 1


def test_the_help_page_has_sections_in_the_order_of_the_questions(capsys):
    assert main.run(["serve", "--help"]) == 0

    page = capsys.readouterr().out
    titles = [line for line in page.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == [
        "What is served, and where:",
        "Lanes and memory:",
        "Who computes when:",
        "What is kept for the next turn:",
        "What is kept across restarts:",
        "The process:",
        "Help:",
    ]
    assert "x>=0" not in page

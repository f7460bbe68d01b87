"""The generator: functions appear whole, whoever asks first."""

import threading

from superfluid_protocol import EventBody, Request, Response, encode, event, request
from superfluid_protocol.postcard_reader import Reader
from superfluid_protocol.schema import wire_type

WAITERS = 8


def test_threads_that_ask_at_once_all_get_a_complete_function():
    """A function is published only when everything that it calls is there."""
    reader = Reader()
    start = threading.Barrier(WAITERS)
    outcomes = []

    def ask(type_, data):
        start.wait()
        value, _ = reader.function(wire_type(type_))(data, 0, 0)
        outcomes.append(value)

    body = event.Rerooted(purged_parent=1, prefix=((0, event.EpochBump()),))
    wrapped = request.With(op_id="a", request=request.List())
    cases = [(EventBody, encode(body)), (Request, encode(wrapped)), (Response, b"\x12"), (Request, b"\x07")]
    threads = [threading.Thread(target=ask, args=cases[at % len(cases)]) for at in range(WAITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(outcomes) == WAITERS
    assert outcomes.count(body) == outcomes.count(wrapped) == 2


def test_a_function_is_made_once():
    reader = Reader()

    assert reader.function(wire_type(Request)) is reader.function(wire_type(Request))

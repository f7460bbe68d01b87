"""The books of the cache: what is found of a prompt, and what goes when room is needed."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superfluid.core import cache as cache_module
from superfluid.core.cache import EQUALS, Cache
from superfluid.core.entry import Entry, Place
from superfluid.core.options import Pool
from superfluid.core.pins import Pins
from superfluid.core.plan import MoveKind

FOREVER = 1 << 60


def ids(*tokens):
    return array("I", tokens)


def books(*, sequences=4, host=1000, **pool):
    return Cache(
        sequences=sequences,
        pins=Pins(1 << 20),
        pool=Pool(n_ctx=1000, bytes_per_token=1, host_bytes=host, **pool),
    )


def hold(cache, seq, stream, *, held=None, exact=0, job=None, target=0, used=0, namespace=0):
    """Let a sequence hold a stream, or its first positions."""
    held = len(stream) if held is None else held
    slot = cache.slots[seq]
    slot.namespace, slot.stream, slot.held, slot.exact = namespace, array("I", stream), held, exact
    slot.job, slot.target, slot.used = job, target, used
    cache.put(slot)
    return slot


def keep(cache, stream, *, place=Place.HOST, used=0, exact=0, namespace=0):
    """An entry of host memory, or a park file."""
    source = Entry(
        key=0, namespace=namespace, stream=array("I", stream), held=len(stream), exact=exact, used=used
    )
    entry = cache.new(place, source, size=len(stream), held=len(stream))
    if place is Place.PARK:
        entry.session = entry.key
        cache.parked[entry.key] = entry.key
    return entry


# -- what is found ----------------------------------------------------------------------------------

STREAM = st.lists(st.integers(1, 2), max_size=6)
HELD = st.tuples(
    st.sampled_from(Place),
    STREAM,
    st.integers(0, 6),  # positions held
    st.integers(0, 6),  # of them exact
    st.integers(0, 1),  # namespace
)


def shared(a, b):
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(
    st.lists(HELD, max_size=8),
    st.lists(st.integers(1, 2), min_size=1, max_size=8),
    st.integers(0, 1),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_the_longest_beginning_that_may_be_used_is_found(entries, prompt, namespace, exact, near, cuts):
    cache = books(sequences=8, cuts_freely=cuts)
    usable = [0]
    for number, (place, stream, held, exactly, where) in enumerate(entries):
        held, exactly = min(held, len(stream)), min(exactly, held, len(stream))
        if place is Place.POOL:
            hold(cache, number, stream, held=held, exact=exactly, namespace=where)
        else:
            entry = keep(cache, stream, place=place, exact=exactly, namespace=where)
            entry.held, entry.exact = held, exactly
        length = min(shared(stream, prompt), held, len(prompt) - 1, exactly if exact else held)
        skipped = where != namespace or (near and place is Place.PARK) or (not cuts and length != held)
        usable.append(0 if skipped else length)

    found = cache.find(array("I", prompt), namespace, exact=exact, near=near)

    assert found.length == max(usable)
    assert (found.entry is None) == (found.length == 0)
    if found.entry is not None:
        assert found.entry.stream[: found.length].tolist() == prompt[: found.length]
        assert found.entry.namespace == namespace


def test_among_equals_the_nearest_then_an_idle_one_then_the_shortest():
    cache = books()
    keep(cache, [1, 2, 3], place=Place.PARK)
    assert cache.find(ids(1, 2, 3, 4)).entry.place is Place.PARK
    keep(cache, [1, 2, 3])
    assert cache.find(ids(1, 2, 3, 4)).entry.place is Place.HOST
    hold(cache, 0, [1, 2, 3], job=1)
    assert cache.find(ids(1, 2, 3, 4)).entry.key == 0
    hold(cache, 1, [1, 2, 3, 9, 9])
    assert cache.find(ids(1, 2, 3, 4)).entry.key == 1
    hold(cache, 2, [1, 2, 3, 8])
    assert cache.find(ids(1, 2, 3, 4)).entry.key == 2


class TestWhatIsBeingComputed:
    PROMPT = ids(1, 2, 3, 4, 9)

    def soon(self, cache, **kwargs):
        found = cache.find(self.PROMPT, **kwargs)
        return found.leader, found.pending, found.length

    def test_a_lane_that_prefills_is_found_before_it_is_there(self):
        cache = books()
        hold(cache, 0, [1, 2, 3, 4, 5], held=2, job=7, target=5)

        assert self.soon(cache) == (7, 4, 2)

    def test_one_whose_prefill_is_done_leads_nobody(self):
        cache = books()
        hold(cache, 0, [1, 2, 3, 4, 5], job=7, target=5)

        assert self.soon(cache) == (None, 0, 4)

    def test_what_is_not_computed_exactly_is_nothing_to_an_exact_job(self):
        cache = books()
        hold(cache, 0, [1, 2, 3, 4, 5], held=2, job=7, target=5)
        assert self.soon(cache, exact=True) == (None, 0, 0)
        hold(cache, 0, [1, 2, 3, 4, 5], held=2, exact=2, job=7, target=5)
        assert self.soon(cache, exact=True) == (7, 4, 2)

    def test_a_model_that_cannot_cut_has_it_only_while_it_is_not_past(self):
        cache = books(cuts_freely=False)
        hold(cache, 0, [1, 2, 3, 4, 5, 6, 7], held=2, job=7, target=7)
        assert self.soon(cache) == (7, 4, 2)
        hold(cache, 0, [1, 2, 3, 4, 5, 6, 7], held=5, job=7, target=7)
        assert self.soon(cache) == (None, 0, 0)

    def test_one_that_cannot_cut_leaves_a_checkpoint_before_the_last_position_of_its_prompt(self):
        cache = books(cuts_freely=False)
        hold(cache, 0, [1, 2, 3, 4], held=2, job=7, target=4)
        assert self.soon(cache) == (7, 3, 2)
        hold(cache, 0, [1, 2, 3, 4], held=3, job=7, target=4)
        assert self.soon(cache) == (None, 0, 3), "that one is there"


def test_everything_that_holds_some_of_a_stream_is_told():
    cache = books()
    hold(cache, 0, [1, 2, 3])
    hold(cache, 1, [1, 2, 3], held=0, job=7, target=3)
    file = keep(cache, [1, 2], place=Place.PARK)
    keep(cache, [7, 7])

    assert [(entry.key, n) for entry, n in cache.where(ids(1, 2, 3, 4))] == [(0, 3), (file.key, 2)]


# -- what goes --------------------------------------------------------------------------------------


def dropped(cache, size):
    """The entries that go for one of so many bytes; None when they do not free enough."""
    moves = cache.reserve(size)
    return None if moves is None else [move.entry for move in moves]


def test_room_is_made_of_what_was_not_used_for_longest():
    cache = books(host=100)
    old, new = keep(cache, [1] * 40, used=1), keep(cache, [2] * 40, used=2)

    assert dropped(cache, 20) == []
    assert dropped(cache, 30) == [old.key]
    assert dropped(cache, 100) == [new.key]
    assert dropped(cache, 101) is None


def test_what_cannot_be_had_costs_nothing():
    cache = books(host=100)
    old, new = keep(cache, [1] * 40), keep(cache, [2] * 40)
    new.promises = 1

    assert dropped(cache, 61) is None
    assert {old.key, new.key} <= cache.entries.keys()


def test_room_for_an_entry_is_what_nobody_waits_for():
    cache = books(host=100)
    kept = keep(cache, [1] * 60)
    assert cache.has_room(100)
    assert not cache.has_room(101)
    assert not cache.has_room(15), "not worth an entry"
    kept.promises = 1
    assert cache.has_room(40)
    assert not cache.has_room(41)
    assert not books(host=0).has_room(40)


def test_entries_of_host_memory_are_bounded_by_their_number_too(monkeypatch):
    monkeypatch.setattr(cache_module, "MAX_HOST_ENTRIES", 4)
    monkeypatch.setattr(cache_module, "HOST_THINNED", 2)
    cache = books(host=100)
    first, second, third, fourth = [keep(cache, [token] * 20, used=token) for token in (1, 2, 3, 4)]
    first.promises = 1

    assert dropped(cache, 10) == [second.key, third.key], "more than one, for the next ones"
    fifth, sixth = keep(cache, [5] * 20), keep(cache, [6] * 20)
    for entry in (fourth, fifth, sixth):
        entry.promises = 1
    assert dropped(cache, 10) is None, "somebody waits for each"


def test_room_in_bytes_is_room_in_number_too(monkeypatch):
    monkeypatch.setattr(cache_module, "MAX_HOST_ENTRIES", 2)
    cache = books(host=100)
    first = keep(cache, [1] * 50, used=1)
    keep(cache, [2] * 50, used=2)

    assert dropped(cache, 10) == [first.key]


def test_a_search_looks_at_some_of_thousands_that_share_as_much_and_at_every_lane():
    """Behind one system prompt each looked at all conversations, for each job that waited."""
    cache = books(sequences=60, host=1 << 20)
    for number in range(500):
        keep(cache, [*[7] * 50, 100 + number], place=Place.PARK)
        keep(cache, [*[7] * 50, 100 + number])
    for seq in range(60):
        hold(cache, seq, [*[7] * 50, 100 + seq], job=1 + seq, held=49 + (seq == 40))
    looked_at = []
    cache.entries = Watched(cache.entries, looked_at)

    assert cache.find(ids(*[7] * 50, 9)).entry.key == 40
    assert len(looked_at) <= 60 + 2 * EQUALS
    looked_at.clear()
    assert cache.find(ids(*[7] * 50, 599, 9)).length == 51
    assert len(looked_at) <= 60 + 2 * EQUALS


class Watched(dict):
    """A dict that notes whose values were asked for."""

    def __init__(self, items, looked_at):
        super().__init__(items)
        self.looked_at = looked_at

    def __getitem__(self, key):
        self.looked_at.append(key)
        return super().__getitem__(key)


def test_what_is_held_twice_goes_first_and_only_once():
    cache = books(host=100)
    keep(cache, [2] * 30, used=1)
    twins = [keep(cache, [1] * 30, used=9), keep(cache, [1] * 30, used=9)]

    (gone,) = dropped(cache, 40)

    assert gone in {twin.key for twin in twins}


def test_what_is_pinned_goes_last_and_the_oldest_pin_first():
    cache = books(host=120)
    entries = [keep(cache, [token] * 40, used=token) for token in (1, 2, 3)]
    cache.pins.put(11, ids(*[2] * 40), FOREVER, 0)
    cache.pins.put(12, ids(*[1] * 40), FOREVER, 0)

    gone = [dropped(cache, size) for size in (40, 80, 120)]

    assert gone == [[entries[2].key], [entries[1].key], [entries[0].key]]


def test_a_pin_protects_what_serves_it_best_and_a_file_serves_nothing():
    cache = books()
    short, whole = keep(cache, [1] * 20), keep(cache, [1] * 30)
    keep(cache, [1] * 40, place=Place.PARK)
    cache.pins.put(11, ids(*[1] * 40), FOREVER, 0)
    assert cache.pinned() == {whole.key: 1}
    hold(cache, 2, [1] * 30)
    assert cache.pinned() == {whole.key: 1}, "it is looked for once"
    cache.forget_pinned()
    assert cache.pinned() == {2: 1}
    cache.clear(cache.slots[2])
    assert cache.pinned() == {whole.key: 1}
    assert short.key in cache.entries


def test_only_idle_sequences_are_relieved_and_what_nothing_else_holds_is_saved():
    cache = books(host=1000)
    cache.pool = Pool(n_ctx=100, bytes_per_token=1, host_bytes=1000)
    hold(cache, 0, [1] * 90, job=5, used=0)
    hold(cache, 1, [2] * 90, used=1)
    hold(cache, 2, [3] * 90, used=2)
    hold(cache, 3, [2] * 95, used=3)

    moves = cache.relieve(85, 50)

    assert [(move.kind, move.seq) for move in moves] == [
        (MoveKind.CLEAR, 1),  # sequence 3 holds it too
        (MoveKind.SAVE, 2),
        (MoveKind.CLEAR, 2),
    ]
    assert cache.used_cells() == 185
    assert cache.relieve(85, 50) == []


def test_lanes_alone_may_be_above_the_mark():
    cache = books(sequences=1)
    cache.pool = Pool(n_ctx=100)
    hold(cache, 0, [1] * 95, job=5)

    assert cache.relieve(85, 50) == []
    assert cache.used_cells() == 95


@pytest.mark.parametrize(("percent", "left"), [(0, 3), (10, 2), (50, 1), (100, 0)])
def test_a_share_of_host_memory_is_given_up(percent, left):
    cache = books()
    for token in (1, 2, 3):
        keep(cache, [token] * 40)

    moves = cache.shrink(percent)

    assert len(moves) == 3 - left
    assert cache.host_used == 40 * left


def test_a_lost_worker_leaves_the_files():
    cache = books()
    hold(cache, 0, [1] * 20, job=5)
    keep(cache, [2] * 20)
    file = keep(cache, [3] * 20, place=Place.PARK)
    cache.lose()

    assert cache.entries.keys() == {0, 1, 2, 3, file.key}
    assert (cache.used_cells(), cache.host_used, cache.park_used) == (0, 0, 20)
    assert cache.find(ids(*[1] * 20)).length == 0
    assert cache.find(ids(*[3] * 20)).length == 19


def test_a_sessions_own_file_is_found_behind_any_number_of_others_that_hold_the_same():
    cache = Cache(sequences=1, pins=Pins(0))
    stream = array("I", range(100))
    for session in range(1, 60):
        file = cache.new(Place.PARK, Entry(key=0, stream=stream, held=90), size=1, held=90)
        file.session = session
        cache.parked[session] = file.key

    found = cache.parked_file(59, stream)

    assert found is not None
    assert (found.session, found.held) == (59, 90)
    assert cache.parked_file(59, stream[:50]) is None
    assert cache.parked_file(60, stream) is None

"""Park files as the scheduler sees them: what is ordered when, and what becomes of it.

Random traffic with them is in ``test_schedule_model``.
"""

from array import array
from dataclasses import replace

import pytest

from superfluid.core.entry import Place
from superfluid.core.orders import FetchFile, RemoveFile, SealFile
from superfluid.core.parking import LEAST_FETCHED
from superfluid.core.plan import MoveKind
from tests.core.bench import Bench
from tests.core.fake_engine import Kv, Trouble

SESSION = 7
TURN = [5] * 100


class Park(Bench):
    """A bench that carries orders out: seals and fetches wait in `asked` for `answer`."""

    def __init__(self, **options):
        super().__init__(**{"lanes": 1, "kept": 1, "host": 1 << 20, "park": True, **options})
        self.files, self.asked = {}, []

    def tick(self, **trouble):
        plan = self.scheduler.plan()
        self.carry_out()
        if plan is not None:
            self.settle(self.engine.run(plan, Trouble(**trouble)))
        return plan

    def carry_out(self):
        for order in self.scheduler.orders:
            if isinstance(order, RemoveFile):
                self.files.pop(order.session, None)
            else:
                self.asked.append((order, self.engine.host.get(order.entry)))
        self.scheduler.orders.clear()

    def answer(self, *, ok=True):
        order, kv = self.asked.pop(0)
        if isinstance(order, SealFile):
            assert kv.tokens == order.stream
            if ok:
                self.files[order.session] = kv
        elif ok:
            self.engine.host[order.entry] = self.files[order.session].first(len(order.stream))
        self.scheduler.filed(order.ticket, ok=ok, size=len(order.stream))
        self.carry_out()

    def settle_down(self):
        """Tick until nothing is to be done."""
        while self.tick() is not None:
            assert self.scheduler.tick < 1000

    def park(self, job=1, prompt=TURN, session=SESSION, **kwargs):
        """Serve a turn and write its file."""
        self.run(job, prompt, session=session, **kwargs)
        self.settle_down()
        self.answer()

    def lose_memory(self):
        """A restart of the worker: only files are left."""
        self.scheduler.reset()
        self.engine = Bench(lanes=self.options.lanes, kept=self.options.kept, host=1 << 20).engine
        self.engine.prompts = self.prompts

    def computes_exactly(self):
        """The worker computes every row exactly, whoever asks."""
        self.engine.pool = replace(self.pool, exact=True)
        self.scheduler.open(self.engine.pool)

    def book(self, session, stream, *, size):
        """A file of an earlier daemon is there."""
        parking = self.scheduler.parking
        parking.found(session, stream, size=size, name=parking.origin.name(0), exact=0)

    def parked(self):
        cache = self.scheduler.cache
        return {session: cache.entries[key].held for session, key in cache.parked.items()}


# -- sealing ----------------------------------------------------------------------------------------


def test_a_finished_turn_is_saved_sealed_and_let_go():
    park = Park()
    park.run(1, TURN, session=SESSION)
    save = park.tick()
    assert [move.kind for move in save.moves] == [MoveKind.SAVE]
    assert park.tick() is None
    assert park.parked() == {}, "not before it is written"
    assert park.scheduler.parking.sealing
    park.answer()
    assert not park.scheduler.parking.sealing
    drop = park.tick()
    assert [move.kind for move in drop.moves] == [MoveKind.DROP]

    assert park.parked() == {SESSION: 104}
    assert park.scheduler.cache.host_used == 0
    assert park.scheduler.parking.parks == 1


@pytest.mark.parametrize(
    ("options", "kwargs"),
    [({"park": False}, {"session": SESSION}), ({}, {"session": 0}), ({"host": 0}, {"session": SESSION})],
    ids=["no parking", "no session", "no room to export it"],
)
def test_what_is_not_parked(options, kwargs):
    park = Park(**options)
    park.run(1, TURN, **kwargs)
    park.settle_down()

    assert park.asked == []


def test_a_failed_job_is_not_parked():
    park = Park()
    park.submit(1, TURN, session=SESSION)
    park.tick(fail=frozenset({1}))
    park.settle_down()

    assert park.asked == []


def test_a_file_that_could_not_be_written_is_not_there():
    park = Park()
    park.run(1, TURN, session=SESSION)
    park.settle_down()
    park.answer(ok=False)

    assert park.parked() == {}
    assert park.scheduler.parking.parks == 0


def test_an_export_that_fails_leaves_the_session_without_a_file():
    park = Park()
    park.run(1, TURN, session=SESSION)
    park.tick(saves_fail=True)
    park.settle_down()

    assert park.asked == []
    assert park.scheduler.cache.host_used == 0


def test_what_was_exported_stays_when_its_sequence_was_taken_meanwhile():
    park = Park(kept=0)
    park.submit(1, TURN, session=SESSION)
    park.submit(2, [9] * 50, limit=50)
    park.settle_down()
    park.answer()
    park.run(3, [*TURN, 8], session=SESSION)

    assert park.ends[3].warm == 100
    assert park.scheduler.counts.resumes["host"] == 1


def test_what_waits_for_a_slow_disk_is_bounded_by_host_memory():
    """Beyond that a session goes without a new file."""
    park = Park(host=500)
    for session in range(1, 21):
        park.run(session, [session] * 200, session=session)
        park.settle_down()
        assert sum(len(kv.tokens) for _, kv in park.asked) <= 500
    assert [order.session for order, _ in park.asked] == [1, 2]
    park.answer()
    park.answer()
    park.run(21, [21] * 200, session=21)
    park.settle_down()

    assert [order.session for order, _ in park.asked] == [21]
    assert park.parked().keys() == {1, 2}


def test_a_longer_turn_takes_the_place_of_the_sessions_file():
    park = Park()
    park.park()
    park.park(2, [*park.stream(1), *TURN])

    assert park.parked() == {SESSION: 209}
    assert park.scheduler.cache.park_used == 209


def test_the_file_that_was_not_used_for_longest_goes_for_the_budget():
    park = Park(park_bytes=250)
    for session in (1, 2, 3):
        park.park(session, [session] * 100, session=session)

    assert park.parked() == {2: 104, 3: 104}
    assert park.files.keys() == {2, 3}
    assert park.scheduler.cache.evictions[Place.PARK] == 1


def test_a_file_stays_while_a_newer_one_of_its_session_is_written():
    """Its removal could come after the writing, and take the newer one."""
    park = Park(park_bytes=250, kept=3)
    park.park(1, [1] * 100, session=1)
    park.run(2, [*park.stream(1), *[1] * 20], session=1)
    park.settle_down()
    for session in (3, 4):
        park.run(session, [session] * 100, session=session)
        park.settle_down()
    sealing = park.asked.pop(0)
    park.answer()
    park.answer()
    assert park.parked() == {1: 104, 4: 104}, "another goes for it"
    park.asked.append(sealing)
    park.answer()

    assert park.parked() == {1: 129, 4: 104}
    assert park.files.keys() == {1, 4}


def test_nor_does_it_stay_for_good_where_the_newer_one_could_not_be_written():
    park = Park(park_bytes=200, kept=3)
    park.park(1, [1] * 100, session=1)
    park.run(2, [*park.stream(1), *[1] * 20], session=1)
    park.run(3, [3] * 100, session=3, exact=True)
    park.settle_down()
    first, second = park.asked
    park.asked = [second]
    park.answer()
    assert park.parked() == {1: 104}, "the new one went for it"
    park.asked = [first]
    park.answer(ok=False)

    assert park.parked() == {1: 104}


def test_lossy_files_hold_nothing_exact():
    park = Park(park_lossy=True)
    park.run(1, TURN, session=SESSION, exact=True)
    park.settle_down()
    assert park.asked[0][0].name == park.scheduler.parking.origin.name(0)
    park.answer()
    park.lose_memory()
    park.run(2, [*TURN, 8], session=SESSION, exact=True)

    assert park.ends[2].warm == 0


def test_nor_do_they_where_every_row_is_exact():
    """What is computed exactly behind KV from a lossy file is not exact either."""
    park = Park(park_lossy=True)
    park.computes_exactly()
    park.park()
    park.lose_memory()
    park.computes_exactly()
    park.submit(2, [*park.stream(1), 8], session=SESSION)
    park.tick()
    park.answer()
    park.drain()
    assert park.ends[2].warm == 104
    park.run(3, [*park.stream(2), 9], exact=True)

    assert park.ends[3].warm == 0


# -- fetching ---------------------------------------------------------------------------------------


def parked():
    """A session whose KV lies in its file alone."""
    park = Park()
    park.park(exact=True)
    park.lose_memory()
    return park


def test_a_parked_session_is_read_before_its_job_has_a_lane():
    park = parked()
    park.submit(2, [*park.stream(1), 8], session=SESSION, exact=True)
    assert park.tick() is None
    ((order, _),) = park.asked
    assert (order.session, len(order.stream), order.name) == (
        SESSION,
        104,
        park.scheduler.parking.origin.name(104),
    )
    park.answer()
    park.drain()

    assert park.ends[2].warm == 104
    assert park.is_whole(2)
    assert park.scheduler.counts.resumes == {"park": 1}


def test_a_file_that_cannot_be_used_is_never_read_again_and_its_job_resumes_cold():
    park = parked()
    park.submit(2, [*park.stream(1), 8])
    park.tick()
    park.answer(ok=False)
    park.drain()
    assert park.ends[2].warm == 0
    assert park.is_whole(2)
    assert park.scheduler.cache.host_used == 0
    park.lose_memory()
    park.run(3, [*park.stream(1), 9])

    assert park.asked == []
    assert park.parked() == {SESSION: 0}
    assert park.scheduler.cache.park_used == 104, "it is there, and takes room"


def test_it_goes_before_files_that_were_not_used_for_longer():
    park = Park(park_bytes=330, kept=0)
    for session in (1, 2, 3):
        park.park(session, [session] * 100, session=session)
    park.lose_memory()
    park.submit(4, [*park.stream(3), 8])
    park.tick()
    park.answer(ok=False)
    park.drain()
    park.park(5, [5] * 100, session=5)

    assert park.parked() == {1: 104, 2: 104, 5: 104}


# -- files of earlier -------------------------------------------------------------------------------


def test_files_that_cannot_be_used_go_first():
    park = Park(park_bytes=500)
    parking = park.scheduler.parking
    parking.refused(8, size=200)
    park.book(9, array("I", [9] * 200), size=200)
    assert park.scheduler.cache.park_used == 400
    park.park()

    assert park.parked() == {9: 200, SESSION: 104}


def test_they_go_at_once_where_the_others_fill_the_budget():
    park = Park(park_bytes=250)
    park.scheduler.parking.refused(8, size=200)
    park.book(9, array("I", [9] * 200), size=200)

    assert park.parked() == {9: 200}
    assert park.scheduler.orders == [RemoveFile(session=8)]


def test_a_new_file_takes_the_place_of_one_that_cannot_be_used():
    park = Park()
    park.scheduler.parking.refused(SESSION, size=200)
    park.park()

    assert park.parked() == {SESSION: 104}
    assert park.scheduler.cache.park_used == 104
    assert SESSION in park.files


def test_a_worker_like_the_one_before_reads_the_same_files():
    park = parked()
    parking = park.scheduler.parking

    assert not parking.open(parking.origin)
    assert park.parked() == {SESSION: 104}


@pytest.mark.parametrize("changes", [{"identity": "other"}, {"rows": 4}])
def test_for_another_worker_the_files_are_looked_at_anew(changes):
    park = parked()
    parking = park.scheduler.parking

    assert parking.open(replace(parking.origin, **changes))
    assert park.parked() == {}
    assert park.scheduler.cache.park_used == 0
    assert park.scheduler.orders == [], "they stay where they are"


def test_what_is_read_is_what_was_found_under_its_own_name():
    park = Park()
    park.computes_exactly()
    park.scheduler.parking.found(SESSION, array("I", TURN), size=100, name="as it is", exact=60)
    park.files[SESSION] = Kv(array("I", TURN), 100)
    park.submit(2, [*TURN, 8], exact=True)
    park.tick()
    assert park.asked == [], "60 positions are too few to read"
    park.drain()
    park.lose_memory()
    park.submit(3, [*TURN, 9])
    park.tick()

    assert park.asked[0][0].name == "as it is"


def test_a_lossy_file_is_not_exact_whatever_it_says():
    park = Park()
    park.scheduler.parking.found(SESSION, array("I", TURN), size=100, name="", exact=100, lossy=True)
    park.run(2, [*TURN, 8], exact=True)

    assert park.asked == []
    assert park.ends[2].warm == 0


def test_others_are_served_while_a_file_is_read():
    park = parked()
    park.submit(2, [*park.stream(1), 8], session=SESSION)
    park.submit(3, [3] * 20)
    while 3 not in park.ends:
        park.tick()
    assert park.is_whole(3)
    park.answer()
    park.drain()

    assert park.is_whole(2)


def test_forks_of_a_parked_session_go_on_where_it_ended():
    """Field case F91: a fork paid for the whole prefill once its parent had been put away."""
    park = Park(lanes=4)
    park.park()
    park.lose_memory()
    parent = park.stream(1)
    for fork in range(10, 20):
        park.submit(fork, [*parent, fork], session=fork)
    park.tick()
    (order, _), *more = park.asked
    assert (order.session, more) == (SESSION, []), "it is read once"
    park.answer()
    park.drain()

    assert min(park.ends[fork].warm for fork in range(10, 20)) == len(parent) - 1
    assert park.engine.rows < 100
    assert all(park.is_whole(fork) for fork in range(10, 20))


def test_two_jobs_wait_for_one_reading():
    park = parked()
    park.submit(2, [*park.stream(1), 8])
    park.submit(3, [*park.stream(1), 9])
    park.tick()
    assert len(park.asked) == 1
    park.answer()
    park.drain()

    assert park.ends[2].warm == 104
    assert park.ends[3].warm >= 104


def test_a_job_that_is_cancelled_meanwhile_leaves_what_was_read_to_others():
    park = parked()
    park.submit(2, [*park.stream(1), 8])
    park.tick()
    assert park.scheduler.cancel(2)
    park.answer()
    assert not any(entry.promises for entry in park.scheduler.cache.entries.values())
    park.run(3, [*park.stream(1), 9])

    assert park.ends[3].warm == 104


def test_what_was_read_may_not_go_before_its_job_has_it():
    park = parked()
    park.submit(2, [*park.stream(1), 8])
    park.tick()
    park.answer()

    assert not park.scheduler.drop_host(100)
    assert [job.id for job in park.scheduler.drain_queue()] == [2]
    assert park.scheduler.drop_host(100)


def test_a_job_that_waits_for_a_longer_file_lets_the_first_one_go():
    park = parked()
    park.scheduler.background_divisor = 0
    prompt = [*park.stream(1), *[8] * 200]
    park.submit(2, prompt, qos=2)
    park.tick()
    park.scheduler.reclass(2, 3)  # paused: it gets no lane yet
    park.answer()
    park.book(9, array("I", prompt[:-1]), size=300)
    park.files[9] = Kv(array("I", prompt[:-1]))
    park.scheduler.background_divisor = 1
    park.tick()
    park.answer()
    park.drain()

    assert park.ends[2].warm == len(prompt) - 1
    assert not any(entry.promises for entry in park.scheduler.cache.entries.values())


def test_a_file_is_not_read_where_host_memory_has_no_room():
    park = Park(host=150)
    park.book(SESSION, array("I", [5] * 200), size=200)
    park.run(2, [*[5] * 200, 8])

    assert park.asked == []
    assert park.ends[2].warm == 0


def test_a_file_that_spares_little_is_not_read():
    park = Park()
    park.book(SESSION, array("I", [5] * LEAST_FETCHED), size=100)
    park.run(2, [*[5] * (LEAST_FETCHED - 1), 8])
    assert park.asked == []
    park.submit(3, [*[5] * LEAST_FETCHED, 9])
    park.lose_memory()
    park.tick()

    assert isinstance(park.asked[0][0], FetchFile)


def test_an_urgent_job_that_takes_a_lane_reads_no_file_for_little():
    """What is found once its victim gave way has to lie near: a file cannot be copied into a sequence."""
    park = Park()
    park.submit(1, [9] * 20, limit=400, qos=2)
    park.tick()
    park.book(SESSION, array("I", [5] * 40), size=40)
    park.submit(2, [*[5] * 40, 8], qos=0)
    park.drain()

    assert park.is_whole(2)
    assert park.ends[2].warm == 0


# -- the end of a session ---------------------------------------------------------------------------


def test_the_file_of_a_session_that_is_gone_goes_too():
    park = parked()
    park.scheduler.parking.remove(SESSION)
    park.carry_out()

    assert park.parked() == park.files == {}


@pytest.mark.parametrize("ticks", [0, 1, 2])
def test_what_is_being_written_for_a_session_that_is_gone_does_not_stay(ticks):
    park = Park()
    park.run(1, TURN, session=SESSION)
    for _ in range(ticks):
        park.tick()
    park.scheduler.parking.remove(SESSION)
    park.settle_down()
    while park.asked:
        park.answer()
    park.settle_down()

    assert park.parked() == park.files == {}
    assert not any(entry.promises for entry in park.scheduler.cache.entries.values())


def test_what_is_being_exported_for_a_session_that_is_gone_is_not_written():
    park = Park()
    park.run(1, TURN, session=SESSION)
    plan = park.scheduler.plan()
    park.scheduler.parking.remove(SESSION)
    park.settle(park.engine.run(plan))
    park.settle_down()

    assert park.asked == []
    assert not any(entry.promises for entry in park.scheduler.cache.entries.values())


def test_a_file_may_go_while_it_is_read():
    park = parked()
    park.submit(2, [*park.stream(1), 8])
    park.tick()
    kv = park.files[SESSION]
    park.scheduler.parking.remove(SESSION)
    park.carry_out()
    park.files[SESSION] = kv  # it was open already
    park.answer()
    park.drain()
    assert park.ends[2].warm == 104

    again = parked()
    again.submit(2, [*again.stream(1), 8])
    again.tick()
    again.scheduler.parking.remove(SESSION)
    again.answer(ok=False)
    again.drain()
    assert again.ends[2].warm == 0


def test_a_lost_worker_takes_with_it_what_is_under_way():
    park = parked()
    park.submit(2, [*park.stream(1), 8], session=SESSION)
    park.tick()
    park.asked.clear()
    park.lose_memory()
    park.tick()

    ((order, _),) = park.asked
    assert isinstance(order, FetchFile)
    park.answer()
    park.drain()
    assert park.ends[2].warm == 104


def test_an_answer_that_nobody_waits_for_is_nothing():
    park = Park()
    park.scheduler.filed(99, ok=True, size=1)

    assert park.scheduler.cache.park_used == 0

"""Traffic and trouble for the scheduler, over an engine that knows what each sequence, entry and park file really holds.

The model knows token lists only. The engine refuses what is not there (`fake_engine`), so a claim of the cache that is
not true ends the run; `check` compares the books with what the engine holds.
"""

import copy
from array import array

from superfluid.core.entry import Place
from superfluid.core.errors import PinBudget
from superfluid.core.job import Job
from superfluid.core.orders import FetchFile, RemoveFile, SealFile
from superfluid.core.plan import FINISHED, JobState, MoveKind
from superfluid.core.schedule import Scheduler
from tests.core.builders import PARAMS
from tests.core.fake_engine import FakeEngine, Kv, Trouble, expected_reply

SYSTEM = list(range(1, 30))
"""What most sessions begin with."""

GONE = "gone"


class Session:
    """A conversation: its tokens, where its messages end, and whether it has a job."""

    def __init__(self, number, namespace, stream=(), boundaries=()):
        self.number, self.namespace = number, namespace
        self.stream, self.boundaries = list(stream), list(boundaries)
        self.job = None


class Traffic:
    def __init__(self, options, pool, *, slow=False):
        self.options, self.pool = options, pool
        self.prompts, self.limits, self.got, self.ends, self.session_of = {}, {}, {}, {}, {}
        self.cut_short = set()
        """Jobs that were cancelled or failed on purpose, or whose worker was lost."""
        self.sessions = {}
        self.files = {}
        """What each session's park file really holds."""
        self.seals, self.fetches = [], []
        """Orders that are not answered yet."""
        self.now_ms = 0
        self.step_us = 200_000 if slow else 4_000
        self.scheduler = Scheduler(options=self.options)
        self.spawn()

    def spawn(self):
        self.engine = FakeEngine(self.options.sequences, self.prompts, pool=self.pool, step_us=self.step_us)
        self.scheduler.open(self.pool)

    # -- traffic ------------------------------------------------------------------------------------

    def new_session(self, namespace, stream, boundaries=()):
        session = Session(len(self.sessions) + 1, namespace, stream, boundaries)
        self.sessions[session.number] = session
        return session

    def submit(self, which, cut, new, limit, qos, exact, namespace):
        """A next turn of a session, a fork of one somewhere, or a conversation of its own."""
        numbers = [number for number in self.sessions if self.sessions[number].namespace == namespace]
        if which % (len(numbers) + 1) == len(numbers):
            session = self.new_session(namespace, [] if cut is None else SYSTEM)
        else:
            session = self.sessions[numbers[which % (len(numbers) + 1)]]
            if session.job is not None or cut is not None:
                length = len(session.stream) if cut is None else cut % (len(session.stream) + 1)
                before = [b for b in session.boundaries if b <= length]
                session = self.new_session(namespace, session.stream[:length], before)
        session.boundaries.append(len(session.stream))
        session.stream += new
        job = len(self.prompts) + 1
        session.job = job
        self.session_of[job] = session
        self.prompts[job], self.limits[job], self.got[job] = list(session.stream), limit, []
        self.scheduler.submit(
            Job(
                id=job,
                prompt=array("I", session.stream),
                params=PARAMS,
                limit=limit,
                qos=qos,
                exact=exact,
                session=session.number,
                namespace=namespace,
                boundaries=tuple(session.boundaries),
            )
        )

    def queued(self):
        return [job.id for job in self.scheduler.queues.order(self.scheduler.tick)]

    def cancel_a_queued_job(self, which):
        queued = self.queued()
        job = queued[which % len(queued)]
        assert self.scheduler.cancel(job).id == job
        self.end(job, GONE)

    def reclass(self, which, qos):
        self.scheduler.reclass(which % len(self.prompts) + 1, qos)

    def slow_the_background_down(self, divisor):
        self.scheduler.background_divisor = divisor

    def memory_is_short(self, percent):
        self.scheduler.drop_host(percent)

    def pin(self, which, hold):
        session = self.sessions[which % len(self.sessions) + 1]
        stream = array("I", session.stream)
        try:
            self.scheduler.pin(session.number, stream, self.now_ms + hold, self.now_ms)
        except PinBudget:
            assert len(stream) > self.scheduler.cache.cells * self.options.pin_budget_pct // 100

    def purge(self, which):
        """Its file goes for good; what a worker still writes for it is no harm."""
        idle = self.idle_sessions()
        self.scheduler.parking.remove(idle[which % len(idle)].number)

    def idle_sessions(self):
        return [session for session in self.sessions.values() if session.job is None]

    # -- ticks --------------------------------------------------------------------------------------

    def plain_tick(self):
        return self.tick([], None, None, Trouble())

    def plain_ticks(self, ticks):
        for _ in range(ticks):
            self.plain_tick()

    def tick(self, in_flight, fails, answer, trouble, meanwhile=None):
        """One plan and its result; False without one. Of cancels the worker hears at some step, or too late."""
        scheduler = self.scheduler
        self.now_ms += 1
        twin = copy.deepcopy(scheduler)
        plan = scheduler.plan(self.now_ms)
        assert twin.plan(self.now_ms) == plan, "the same books, the same plan"
        self.carry_out_orders()
        if plan is None:
            self.check_that_nothing_could_run()
            return False
        self.check_admissions(plan)
        running = sorted(scheduler.running)
        if running and fails is not None:
            trouble.fail = frozenset({running[fails % len(running)]})
            self.cut_short |= trouble.fail
        for number, step in in_flight if running else ():
            job = running[number % len(running)]
            assert scheduler.cancel(job) is None
            if step is not None:
                trouble.cancel[job] = step
            self.cut_short.add(job)
        if meanwhile is not None:
            meanwhile()
        result = self.engine.run(plan, trouble)
        if answer is not None:
            self.answer_an_order(answer, fetch=True)
            self.answer_an_order(answer, fetch=False)
        self.settle(result)
        return True

    def check_that_nothing_could_run(self):
        assert not self.scheduler.running
        for job in self.scheduler.queues.order(self.scheduler.tick):
            paused = job.qos == 3 and self.scheduler.background_divisor == 0
            assert paused or job.fetching, "a job waits for nothing"

    def check_admissions(self, plan):
        scheduler = self.scheduler
        seqs = sorted(job.seq for job in scheduler.running.values())
        assert len(seqs) == len(set(seqs)) <= self.options.lanes
        assert {job for job, _ in plan.prefill} <= scheduler.running.keys() - set(plan.hold)
        assert {admit.job for admit in plan.admit} <= scheduler.running.keys()
        classes = [job.qos for job in scheduler.running.values()]
        for admit in plan.admit:
            qos = scheduler.running[admit.job].qos
            assert classes.count(qos) <= (self.options.class_lanes[qos] or self.options.lanes)
            assert scheduler.background_divisor or qos < 3, "what is paused gets no lane"

    def settle(self, result):
        for update in self.scheduler.settle(result):
            assert update.job not in self.ends, "nothing comes behind a job's end"
            self.got[update.job].extend(update.tokens)
            if update.state in FINISHED:
                self.check_end(update)
                self.end(update.job, update.state)

    def check_end(self, update):
        job, state = update.job, update.state
        reply, length = expected_reply(self.prompts[job], self.limits[job]), len(self.prompts[job])
        if state in {JobState.END, JobState.LIMIT}:
            assert self.got[job] == reply
            assert state is (JobState.END if reply[-1] == 0 else JobState.LIMIT)
        else:
            assert self.got[job] == reply[: len(self.got[job])]
            if state is JobState.CONTEXT_FULL:
                assert length + len(self.got[job]) > self.pool.n_ctx
            else:
                assert state in {JobState.CANCELLED, JobState.ERROR}
                assert job in self.cut_short, "only what was cancelled or failed is cut short"
        assert -1 <= update.warm < length

    def end(self, job, how):
        self.ends[job] = how
        session = self.session_of[job]
        session.job = None
        session.stream = [*self.prompts[job], *self.got[job]]

    # -- park files ---------------------------------------------------------------------------------

    def carry_out_orders(self):
        for order in self.scheduler.orders:
            match order:
                case SealFile():
                    kv = self.engine.host[order.entry]
                    assert kv.tokens == order.stream
                    self.seals.append((order, kv))
                case FetchFile():
                    self.fetches.append(order)
                case RemoveFile():
                    self.files.pop(order.session, None)
        self.scheduler.orders.clear()

    def answer_an_order(self, ok, fetch):
        """The worker has written a file or not, and read one or not. One that holds other tokens, or is not there any
        more, it refuses itself."""
        if fetch and self.fetches:
            order = self.fetches.pop(0)
            kv = self.files.get(order.session, Kv())
            ok = ok and (kv.tokens, kv.exact) == (order.stream, self.named(order))
            if ok:
                self.engine.host[order.entry] = kv.first(len(kv.tokens))
            self.scheduler.filed(order.ticket, ok=ok, size=self.pool.size(len(kv.tokens)))
        elif not fetch and self.seals:
            order, kv = self.seals.pop(0)
            if ok:
                self.write(order, kv)
            self.scheduler.filed(order.ticket, ok=ok, size=len(kv.tokens))

    def write(self, order, kv):
        exact = self.named(order)
        assert exact == 0 if self.options.park_lossy else exact <= kv.exact
        self.files[order.session] = Kv(kv.tokens, exact)

    def named(self, order):
        """How many positions of a file are exact, as its name says."""
        return self.scheduler.parking.origin.trusted(order.name)

    # -- losses -------------------------------------------------------------------------------------

    def lose_the_worker(self, in_flight, written):
        """Jobs on lanes fail, those in the queue wait on, nothing is warm but what lies in files. One may have been
        written that nobody was told of."""
        if in_flight:
            self.scheduler.plan(self.now_ms)
            self.carry_out_orders()
        on_lanes = sorted(self.scheduler.running)
        assert sorted(self.scheduler.reset()) == on_lanes
        for job in on_lanes:
            self.cut_short.add(job)
            self.end(job, GONE)
        if written and self.seals:
            self.write(*self.seals[0])
        self.seals, self.fetches = [], []
        self.spawn()

    # -- what always holds --------------------------------------------------------------------------

    def the_books_claim_only_what_the_engine_holds(self):
        for slot, kv in zip(self.scheduler.cache.slots, self.engine.contents, strict=True):
            self.check_claim(slot, kv)
        host = {key: entry for key, entry in self.entries(Place.HOST).items() if entry.held}
        for key, entry in host.items():
            self.check_claim(entry, self.engine.host[key])
            assert entry.held == len(self.engine.host[key].tokens)
        dropped = {move.entry for move in self.scheduler._moves if move.kind is MoveKind.DROP}
        assert self.engine.host.keys() - host.keys() <= dropped, "an entry that nobody knows of"
        assert sum(self.pool.size(len(self.engine.host[key].tokens)) for key in host) <= self.pool.host_bytes

    def check_claim(self, entry, kv):
        assert entry.held <= len(entry.stream)
        assert entry.stream[: entry.held] == kv.tokens[: entry.held]
        assert entry.exact <= entry.held
        assert entry.exact <= kv.exact

    def the_counts_add_up(self):
        cache = self.scheduler.cache
        host, files = self.entries(Place.HOST), self.entries(Place.PARK)
        assert cache.host_used == sum(entry.size for entry in host.values()) <= self.pool.host_bytes
        assert cache.park_used == sum(entry.size for entry in files.values())
        assert cache.parked == {entry.session: key for key, entry in files.items()}
        assert {entry.session for entry in files.values() if entry.held} <= self.files.keys()
        written = {order.session for order, _ in self.seals}
        can_go = [entry for entry in files.values() if not entry.promises and entry.session not in written]
        assert not self.options.park_bytes or not can_go or cache.park_used <= self.options.park_bytes
        assert cache.host_count == len(host)
        for at in {(entry.namespace, entry.place) for entry in cache.entries.values()}:
            index = cache._indexes.get(at, ())
            listed = {k for k, e in cache.entries.items() if (e.namespace, e.place) == at and e.stream}
            assert len(index) == len(listed)
            assert all(key in index and index.stream(key) == cache.entries[key].stream for key in listed)

    def what_somebody_waits_for_is_promised(self):
        parking = self.scheduler.parking
        waiting = list(self.scheduler.queues.order(self.scheduler.tick))
        for key, entry in self.scheduler.cache.entries.items():
            promises = [job for job in waiting if job.promised == key != 0]
            fetches = [f for f in parking._fetching.values() if entry in (f.entry, f.file)]
            seals = [seal for seal in parking._sealing.values() if seal.entry is entry]
            kept = len(promises) + len(fetches) + len(seals) + (key in parking._saving)
            assert entry.promises == kept
        assert all(job.fetching in {0, *parking._fetching} for job in waiting)

    def a_lane_is_one_job_on_one_sequence(self):
        scheduler = self.scheduler
        lanes = {slot.job: slot.key for slot in scheduler.cache.slots if slot.job is not None}
        assert lanes == {job.id: job.seq for job in scheduler.running.values()}
        assert scheduler.cancelled <= scheduler.running.keys()
        assert self.engine.jobs.keys() == scheduler.running.keys() | set(scheduler.retiring)

    def no_job_is_lost(self):
        queued = set(self.queued())
        assert not queued & self.scheduler.running.keys()
        there = queued | self.scheduler.running.keys()
        assert self.prompts.keys() == there | self.ends.keys()
        assert not there & self.ends.keys()

    def entries(self, place):
        return {key: entry for key, entry in self.scheduler.cache.entries.items() if entry.place is place}

    def check(self):
        """What holds after every step."""
        self.the_books_claim_only_what_the_engine_holds()
        self.the_counts_add_up()
        self.what_somebody_waits_for_is_promised()
        self.a_lane_is_one_job_on_one_sequence()
        self.no_job_is_lost()

    def drain(self):
        """Without any more trouble every job ends, and nothing stays promised."""
        scheduler = self.scheduler
        scheduler.background_divisor = 1
        ticks = 0
        while self.plain_tick() or scheduler.queues or self.seals or self.fetches:
            self.answer_an_order(ok=True, fetch=True)
            self.answer_an_order(ok=True, fetch=False)
            self.the_books_claim_only_what_the_engine_holds()
            ticks += 1
            assert ticks < 3000, "some job never ends"
        self.no_job_is_lost()
        self.the_counts_add_up()
        assert not any(entry.promises for entry in scheduler.cache.entries.values())

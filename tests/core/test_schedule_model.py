"""The scheduler against an engine that knows what each sequence really holds, under random traffic and trouble."""

import copy
from array import array

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from superfluid.core.plan import FINISHED, JobState
from superfluid.core.schedule import Job, Scheduler
from tests.core.builders import PARAMS
from tests.core.fake_engine import FakeEngine, Trouble, expected_reply

PICK = st.integers(0, 2**32)
IDS = st.lists(st.integers(1, 9), min_size=1, max_size=40)
SYSTEM = list(range(1, 30))
"""What most sessions begin with."""

GONE = "gone"


class Traffic(RuleBasedStateMachine):
    @initialize(lanes=st.integers(1, 4), spare=st.integers(0, 4), cuts=st.booleans(), slow=st.booleans())
    def start(self, lanes, spare, cuts, slow):
        self.prompts = {}
        self.limits = {}
        self.got = {}
        self.ends = {}
        self.cut_short = set()
        """Jobs that were cancelled or failed on purpose, or whose worker was lost."""
        self.sessions = [list(SYSTEM)]
        self.waiting = []
        self.cuts = cuts
        self.step_us = 200_000 if slow else 4_000
        self.scheduler = Scheduler(lanes=lanes, sequences=lanes + spare)
        self.spawn()

    def spawn(self):
        sequences = self.scheduler.sequences
        self.engine = FakeEngine(sequences, self.prompts, cuts=self.cuts, step_us=self.step_us)

    # -- traffic ------------------------------------------------------------------------------------

    @rule(which=PICK, cut=PICK, new=IDS, limit=st.integers(1, 30), forks=st.booleans(), fresh=st.booleans())
    def submit(self, which, cut, new, limit, forks, fresh):
        """A next turn of a session, a fork of one somewhere, or a conversation of its own."""
        stream = [] if fresh else self.sessions[which % len(self.sessions)]
        if forks:
            stream = stream[: cut % (len(stream) + 1)]
        prompt = [*stream, *new]
        job = len(self.prompts) + 1
        self.prompts[job], self.limits[job], self.got[job] = prompt, limit, []
        self.waiting.append(job)
        self.scheduler.submit(Job(id=job, prompt=array("I", prompt), params=PARAMS, limit=limit))

    @precondition(lambda self: self.scheduler.queue)
    @rule(which=PICK)
    def cancel_a_queued_job(self, which):
        queued = list(self.scheduler.queue)
        job = queued[which % len(queued)]
        assert self.scheduler.cancel(job)
        if job in self.waiting:  # it is not there when it was on a lane already and came back cold
            self.waiting.remove(job)
        self.ends[job] = GONE

    @rule(
        in_flight=st.lists(st.tuples(PICK, st.none() | st.integers(0, 60)), max_size=3),
        fails=st.none() | PICK,
    )
    def tick(self, in_flight, fails):
        """One plan and its result. Meanwhile jobs are cancelled: the worker hears of it at some step, or too late."""
        scheduler = self.scheduler
        twin = copy.deepcopy(scheduler)
        plan = scheduler.plan()
        assert twin.plan() == plan
        if plan is None:
            assert not scheduler.queue
            return
        self.check_admissions(plan)
        running = sorted(scheduler.running)
        trouble = Trouble(fail=frozenset(running[n % len(running)] for n in [fails] if n is not None))
        for number, step in in_flight:
            job = running[number % len(running)]
            assert not scheduler.cancel(job)
            if step is not None:
                trouble.cancel[job] = step
            self.cut_short.add(job)
        self.cut_short |= trouble.fail
        self.settle(self.engine.run(plan, trouble))

    def check_admissions(self, plan):
        for admit in plan.admit:
            retried = self.scheduler.running[admit.job].cold
            if not retried:
                assert admit.job == self.waiting.pop(0), "jobs come to lanes in the order they came"
        seqs = sorted(job.seq for job in self.scheduler.running.values())
        assert len(seqs) == len(set(seqs)) <= self.scheduler.lanes
        assert {job for job, _ in plan.prefill} <= self.scheduler.running.keys()

    def settle(self, result):
        for update in self.scheduler.settle(result):
            assert update.job not in self.ends, "nothing comes behind a job's end"
            self.got[update.job].extend(update.tokens)
            if update.state in FINISHED:
                self.finish(update)

    def finish(self, update):
        job, state = update.job, update.state
        self.ends[job] = state
        reply = expected_reply(self.prompts[job], self.limits[job])
        if state in {JobState.END, JobState.LIMIT}:
            assert self.got[job] == reply
            assert state is (JobState.END if reply[-1] == 0 else JobState.LIMIT)
        else:
            assert state in {JobState.CANCELLED, JobState.ERROR}
            assert job in self.cut_short, "only what was cancelled or failed is cut short"
            assert self.got[job] == reply[: len(self.got[job])]
        assert 0 <= update.warm < len(self.prompts[job])
        self.sessions.append([*self.prompts[job], *self.got[job]])

    @rule()
    def lose_the_worker(self):
        """Jobs on lanes fail, those in the queue wait on, nothing is warm."""
        on_lanes = sorted(self.scheduler.running)
        assert sorted(self.scheduler.reset()) == on_lanes
        for job in on_lanes:
            self.ends[job] = GONE
            self.cut_short.add(job)
        self.spawn()

    # -- what always holds --------------------------------------------------------------------------

    @invariant()
    def the_books_claim_only_what_the_engine_holds(self):
        for slot, contents in zip(self.scheduler.slots, self.engine.contents, strict=True):
            assert slot.stream[: slot.held].tolist() == contents[: slot.held]
            assert slot.held <= len(slot.stream)
            assert slot.held <= len(contents)

    @invariant()
    def a_lane_is_one_job_on_one_sequence(self):
        scheduler = self.scheduler
        lanes = {slot.job: slot.seq for slot in scheduler.slots if slot.job is not None}
        assert lanes == {job.id: job.seq for job in scheduler.running.values()}
        assert not scheduler.queue.keys() & scheduler.running.keys()
        assert scheduler.cancelled <= scheduler.running.keys()

    @invariant()
    def no_job_is_lost(self):
        there = self.scheduler.queue.keys() | self.scheduler.running.keys()
        assert self.prompts.keys() == there | self.ends.keys()
        assert not there & self.ends.keys()

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        ticks = 0
        while self.scheduler.queue or self.scheduler.running:
            self.tick([], None)
            self.the_books_claim_only_what_the_engine_holds()
            ticks += 1
            assert ticks < 2000, "some job never ends"
        self.no_job_is_lost()


Traffic.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestTraffic = pytest.mark.slow(Traffic.TestCase)

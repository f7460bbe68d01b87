"""One generation, from its first tick's tokens to its last record.

The scheduler delivers what each tick made; this task turns it into text and appends one record a tick. When the disk is
slow, ticks pile up in the inbox and go into one record together, so the backlog stays bounded by the reply itself.
Readers follow the session's log, never this object: a slow one holds nothing up and costs no memory.
"""

from array import array
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from superfluid.chat.detokenize import Detokenizer
from superfluid.core.errors import SuperfluidError, WorkerLost
from superfluid.core.plan import FINISHED, JobState
from superfluid.core.record import Record
from superfluid.core.schedule import Update
from superfluid.core.session import Decision, generated
from superfluid.core.state import State
from superfluid.store.store import Store
from superfluid_protocol import numbers

FINISH_OF: Final = {
    JobState.RUNNING: numbers.Finish.OPEN,
    JobState.END: numbers.Finish.END_OF_TURN,
    JobState.LIMIT: numbers.Finish.MAX_TOKENS,
    JobState.CONTEXT_FULL: numbers.Finish.MAX_TOKENS,
    JobState.CANCELLED: numbers.Finish.CANCELLED,
    JobState.ERROR: numbers.Finish.ERROR,
    JobState.COLD: numbers.Finish.ERROR,
}


@dataclass(slots=True, kw_only=True, eq=False)
class Generation:
    """A generation in flight, and afterwards what became of it.

    Attributes:
        job: The scheduler's id of it.
        request_id: Names this attempt in log lines and records.
        first_event: The id of the first event that it appends.
        records: What it has committed so far, the opening of the turn included.
        warm: Prompt tokens that came from kept KV.
        cancelled: It was asked to end, perhaps before the engine knew of it.
        error: Why it failed, once it is done; None for every proper end, a cancel included.
    """

    session: int
    job: int
    request_id: str
    first_event: int
    prompt_tokens: int
    records: list[Record] = field(default_factory=list)
    tokens_generated: int = 0
    warm: int = 0
    finish: int = numbers.Finish.OPEN
    cancelled: bool = False
    error: SuperfluidError | None = None
    done: bool = False
    inbox: list[Update] = field(default_factory=list)
    wakeup: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    def deliver(self, update: Update) -> None:
        """Hand over what a tick made; called by the scheduler's loop, never blocks."""
        self.inbox.append(update)
        self.wakeup.unpark_all()

    async def next_updates(self) -> list[Update]:
        """Everything that was delivered since the last call, at least one."""
        while not self.inbox:
            await self.wakeup.park()
        taken, self.inbox = self.inbox, []
        return taken


def _decided(decision: Decision, _state: State) -> Decision:
    return decision


async def record_reply(generation: Generation, store: Store, detokenizer: Detokenizer) -> None:
    """Append the reply's records until it ends. Returns with `Generation.finish` set.

    Raises:
        SuperfluidError: The log refused a record. What came after the last committed one is not in the session, and a
            later generate goes on from there.
        WorkerLost: The engine failed; what it made before is committed.
    """
    while True:
        updates = await generation.next_updates()
        tokens = array("I")
        for update in updates:
            tokens.extend(update.tokens)
        last = updates[-1]
        finish = FINISH_OF[last.state]
        text = detokenizer.feed(tokens)
        if last.state in FINISHED:
            text += detokenizer.finish()
        generation.warm = max(last.warm, 0)
        if tokens or last.state in FINISHED:
            decision = generated(generation.session, tuple(tokens), text, numbers.Channel.TEXT, finish)
            records = await store.submit(
                generation.session, partial(_decided, decision), request_id=generation.request_id
            )
            generation.records.extend(records)
            store.touch(generation.session)
            generation.tokens_generated += len(tokens)
        if last.state in FINISHED:
            generation.finish = finish
            if finish == numbers.Finish.ERROR:
                raise WorkerLost(
                    last.detail or "the engine failed on this reply; generate again to continue it"
                )
            return

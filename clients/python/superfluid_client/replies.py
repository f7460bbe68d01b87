"""A generation as a client follows it: the events of its stream, and what it came to."""

from collections.abc import Iterable
from dataclasses import dataclass

from superfluid_client.exchange import expect
from superfluid_client.operations import SETTLE_STEP_SECONDS, Handle, Pause
from superfluid_protocol import EventMsg, Response, event, numbers, request, response


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A finished generation.

    Attributes:
        text: What the model said.
        reasoning: What it thought, for models that show it.
        finish: Why it ended, a ``superfluid_protocol.numbers.Finish``.
        tokens_generated: Tokens this generation added.
        warm_prefix: Prompt tokens that came from a cache instead of a prefill.
        events: Everything it committed, the opening of the turn included.
    """

    text: str
    reasoning: str
    finish: int
    tokens_generated: int
    warm_prefix: int
    events: tuple[EventMsg, ...]

    @property
    def is_cut(self) -> bool:
        """Whether the turn is still open, so that generating again continues it."""
        return self.finish not in (numbers.Finish.END_OF_TURN, numbers.Finish.GRAMMAR)


def text_of(message: EventMsg, channel: int = numbers.Channel.TEXT) -> str:
    """The reply text that one event carries on a channel; empty for events that carry none."""
    body = message.body
    return body.text if isinstance(body, event.Generated) and body.channel == channel else ""


class ReplyReader:
    """Turns the responses to one ``Generate`` into events and a ``Reply``.

    Attributes:
        request: What to send.
        events: What was committed so far.
        reply: The result, once the stream has ended well.
    """

    def __init__(self, handle: Handle, max_tokens: int) -> None:
        self._handle = handle
        self._tries = 0
        self.request = request.Generate(session=handle.id, max_tokens=max_tokens)
        self.events: list[EventMsg] = []
        self.reply: Reply | None = None

    def take(self, answer: Response) -> EventMsg | Pause | None:
        """One response: an event, the end (None), or a pause after which the request has to be sent again.

        Raises:
            SuperfluidError: The generation was refused or failed. Its events so far are committed.
        """
        if isinstance(answer, response.Delta):
            self._handle.note(answer.event.event_id)
            self.events.append(answer.event)
            return answer.event
        if not self.events and self._handle.retry(answer, self._tries):
            self._tries += 1
            return Pause(SETTLE_STEP_SECONDS)
        closing = expect(response.Generated, answer, under_way=bool(self.events))
        for message in closing.events:
            self._handle.note(message.event_id)
        self.reply = Reply(
            text=_joined(closing.events, numbers.Channel.TEXT),
            reasoning=_joined(closing.events, numbers.Channel.REASONING),
            finish=closing.finish,
            tokens_generated=closing.tokens_generated,
            warm_prefix=closing.warm_prefix,
            events=closing.events,
        )
        return None

    def left(self) -> None:
        """The stream is given up before its end."""
        self._handle.left_stream = True


def _joined(events: Iterable[EventMsg], channel: int) -> str:
    return "".join(text_of(message, channel) for message in events)

"""`Service.call(request) -> reply`: every request but the streaming ones, for every transport.

A handler reads the state, or decides a command and submits it to the store. Refusals are exceptions of
`superfluid.core.errors`; their text is the client's `Err`.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from superfluid.api.generate import Generations
from superfluid.api.input import append_message, append_raw
from superfluid.api.scheduling import Scheduling
from superfluid.chat.text import check_text
from superfluid.core import frame, view
from superfluid.core import session as decide
from superfluid.core.errors import NotSupported
from superfluid.core.record import Record
from superfluid.sched.model import Model
from superfluid.store.store import Store
from superfluid_protocol import ModelInfo, Request, Response, request, response, types

Handler = Callable[["Service", Any], Awaitable[Response]]


class Service:
    """One model's sessions, behind one method.

    Args:
        models: What is served, as of now.
        metrics: Renders the daemon's metrics in Prometheus' text format.
    """

    def __init__(
        self,
        *,
        store: Store,
        model: Model,
        generations: Generations,
        scheduling: Scheduling,
        models: Callable[[], tuple[ModelInfo, ...]],
        metrics: Callable[[], str],
    ) -> None:
        self.store = store
        self.model = model
        self.generations = generations
        self.scheduling = scheduling
        self._models = models
        self._metrics = metrics

    async def call(self, req: Request) -> Response:
        """Answer one request.

        Raises:
            SuperfluidError: It is refused, or failed; the text is for the client.
        """
        handler = _HANDLERS.get(type(req))
        if handler is None:
            raise NotSupported(f"{type(req).__name__} is not supported yet by this version of superfluid")
        return await handler(self, req)

    # -- sessions -----------------------------------------------------------------------------------

    async def _create(self, req: request.Create) -> Response:
        store = self.store
        records = await store.submit(None, lambda s: decide.create(s, store.new_id(), req.parent, req.params))
        return response.Created(session=records[0].session)

    async def _fork(self, req: request.Fork) -> Response:
        return await self._branch(req.session, req.at_event, req.params)

    async def _trim(self, req: request.Trim) -> Response:
        return await self._branch(req.session, req.to_event, None)

    async def _branch(self, session: int, at_event: int, params: types.GenParams | None) -> Response:
        store = self.store
        records = await store.submit(
            None, lambda s: decide.fork(s, store.new_id(), session, at_event, params)
        )
        return response.Created(session=records[0].session)

    async def _set_meta(self, req: request.SetMeta) -> Response:
        if req.title is not None:
            check_text(req.title)
        records = await self.store.submit(
            req.session,
            lambda s: decide.set_meta(s, req.session, req.expected_version, req.title, req.archived),
        )
        assert records
        return response.Meta(version=req.expected_version + 1)

    # -- input --------------------------------------------------------------------------------------

    async def _append(self, req: request.Append) -> Response:
        return _committed(await append_raw(self.store, self.model, req))

    async def _append_message(self, req: request.AppendMessage) -> Response:
        return _committed(await append_message(self.store, self.model, req))

    async def _cancel(self, req: request.Cancel) -> Response:
        decide.check_cancel(self.store.state, self.store.busy, req.session)
        self.generations.cancel(req.session)
        return response.Cancelling()

    # -- scheduling ---------------------------------------------------------------------------------

    async def _set_qos(self, req: request.SetQos) -> Response:
        return _committed(await self.scheduling.set_qos(req))

    async def _set_background_rate(self, req: request.SetBackgroundRate) -> Response:
        self.scheduling.set_background_rate(req.divisor)
        return response.Ack()

    async def _pin(self, req: request.Pin) -> Response:
        return response.Pinned(deadline_unix_ms=await self.scheduling.pin(req.session, req.ttl_ms))

    # -- reading ------------------------------------------------------------------------------------

    def read(self, req: request.Read, *, room: int = view.REPLY_BYTES) -> Response:
        """Answer a `Read` with events of at most *room* bytes, for a transport that is short of it."""
        return response.Events(events=view.read(self.store.state, req.session, req.cursor, room=room))

    async def _read(self, req: request.Read) -> Response:
        return self.read(req)

    async def _list(self, _req: request.List) -> Response:
        sessions = self.store.state.sessions
        return response.Sessions(ids=tuple(sorted(i for i, s in sessions.items() if not s.archived)))

    async def _tree(self, _req: request.Tree) -> Response:
        return response.Tree(nodes=view.nodes(self.store.state))

    async def _sessions(self, req: request.Sessions) -> Response:
        return response.SessionList(
            sessions=view.summaries(self.store.state, include_archived=req.include_archived)
        )

    async def _inspect(self, req: request.Inspect) -> Response:
        return response.Inspection(
            inspection=view.inspection(
                self.store.state,
                req.session,
                wal_version=frame.VERSION,
                store_id=self.store.log.store_id,
                tier=self.scheduling.tier(req.session),
            )
        )

    async def _list_models(self, _req: request.Models) -> Response:
        return response.ModelList(models=self._models())

    async def _get_metrics(self, _req: request.Metrics) -> Response:
        return response.Text(text=self._metrics())


_HANDLERS: Final[dict[type[Request], Handler]] = {
    request.Create: Service._create,
    request.Append: Service._append,
    request.AppendMessage: Service._append_message,
    request.Read: Service._read,
    request.List: Service._list,
    request.Cancel: Service._cancel,
    request.Fork: Service._fork,
    request.Trim: Service._trim,
    request.Tree: Service._tree,
    request.Sessions: Service._sessions,
    request.SetMeta: Service._set_meta,
    request.SetQos: Service._set_qos,
    request.SetBackgroundRate: Service._set_background_rate,
    request.Pin: Service._pin,
    request.Inspect: Service._inspect,
    request.Models: Service._list_models,
    request.Metrics: Service._get_metrics,
}


def _committed(records: tuple[Record, ...]) -> Response:
    """The reply to an append: its last event, which is the one the client asked for."""
    return response.Committed(event=view.message_of(records[-1]))

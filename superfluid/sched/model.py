"""A model as the daemon sees it: the text side that loads at once, and readiness to wait for.

The vocabulary (tokenizer and template, no weights) and the worker load side by side; what needs neither is served
meanwhile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from superfluid.chat.codec import ChatCodec
from superfluid.chat.vocabulary import Vocabulary
from superfluid.core.errors import NoChatTemplate, ShuttingDown, SuperfluidError


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """The text side of a loaded model.

    Attributes:
        content: Digest of the model file: what its KV belongs to, whatever the template.
        codec: None when the model has no usable template; `no_codec` then says why.
        fingerprint: Digest of the model's content and its template, as sessions record it.
    """

    content: str
    vocabulary: Vocabulary
    vocabulary_digest: str
    codec: ChatCodec | None
    no_codec: str
    fingerprint: int

    def chat(self) -> ChatCodec:
        """The codec, or raise `NoChatTemplate`."""
        if self.codec is None:
            raise NoChatTemplate(self.no_codec)
        return self.codec


class Model:
    """One served model.

    Args:
        name: As the person who started the daemon named it.
        load_text: Blocking; called once, in a thread that waits for it also when `load` is cancelled: it has to notice by
            ``trio.from_thread.check_cancelled``.
    """

    def __init__(self, name: str, path: Path, *, load_text: Callable[[Path], Text]) -> None:
        self.name = name
        self.path = path
        self._load_text = load_text
        self._text: Text | None = None
        self._failure: SuperfluidError | None = None
        self._settled = trio.Event()

    async def load(self) -> Text:
        """Load the text side. Raises what `load_text` raised; those who wait in `text` get it too."""
        try:
            self._text = await trio.to_thread.run_sync(self._load_text, self.path)
        except SuperfluidError as failure:
            self._failure = failure
            raise
        except trio.Cancelled:
            self._failure = ShuttingDown("the daemon is ending; try again after its restart")
            raise
        finally:
            self._settled.set()
        return self._text

    async def text(self) -> Text:
        """The text side; waits for it while it loads."""
        if self._text is None:
            await self._settled.wait()
        if self._text is None:
            assert self._failure is not None
            raise type(self._failure)(*self._failure.args)
        return self._text

"""Loading a model's text side: vocabulary, template, fingerprint."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import xxhash

from superfluid.chat.codec import ChatCodec
from superfluid.core.errors import NoChatTemplate
from superfluid.sched.model import Text


def load_text(
    path: Path,
    *,
    now: datetime,
    check_cancelled: Callable[[], object] = lambda: None,
    on_content: Callable[[str], object] = lambda digest: None,
) -> Text:
    """Load the vocabulary (no weights), build the chat codec and digest the whole file: blocks for seconds a gigabyte.

    Args:
        check_cancelled: Called often while the file is read; what it raises ends the loading.
        on_content: Told the digest of the file's content as soon as it is known.
        now: What the template's ``strftime_now`` answers for as long as the daemon runs.

    Raises:
        EngineMissing, ModelError: The engine is not installed; the file is no model.
    """
    from superfluid.worker.llama.model import model_digest
    from superfluid.worker.llama.vocab import Vocabulary

    vocabulary = Vocabulary.load(path)
    content = model_digest(path, check_cancelled=check_cancelled)
    on_content(content)
    codec: ChatCodec | None = None
    reason = ""
    try:
        codec = ChatCodec.build(vocabulary, now=now)
    except NoChatTemplate as missing:
        reason = str(missing)
    mark = f"{content}:{codec.fingerprint if codec else 0:x}"
    return Text(
        content=content,
        vocabulary=vocabulary,
        vocabulary_digest=vocabulary.digest,
        codec=codec,
        no_codec=reason,
        fingerprint=xxhash.xxh3_64_intdigest(mark.encode()),
    )

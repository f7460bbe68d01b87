"""Loading a model's text side: vocabulary, template, fingerprint."""

from datetime import datetime
from pathlib import Path

import xxhash

from superfluid.chat.codec import ChatCodec
from superfluid.core.errors import NoChatTemplate
from superfluid.sched.model import Text


def load_text(path: Path, *, now: datetime) -> Text:
    """Load the vocabulary (no weights) and build the chat codec. Blocking: a few tenths of a second.

    Args:
        now: What the template's ``strftime_now`` answers for as long as the daemon runs.

    Raises:
        EngineMissing, ModelError: The engine is not installed; the file is no model.
    """
    from superfluid.worker.llama.model import model_digest
    from superfluid.worker.llama.vocab import Vocabulary

    vocabulary = Vocabulary.load(path)
    codec: ChatCodec | None = None
    reason = ""
    try:
        codec = ChatCodec.build(vocabulary, now=now)
    except NoChatTemplate as missing:
        reason = str(missing)
    content = model_digest(path)
    mark = f"{content}:{codec.fingerprint if codec else 0:x}"
    return Text(
        vocabulary=vocabulary,
        vocabulary_digest=vocabulary.digest,
        codec=codec,
        no_codec=reason,
        fingerprint=xxhash.xxh3_64_intdigest(mark.encode()),
    )

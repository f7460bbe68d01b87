"""The superfluid wire protocol: the message catalogue, its postcard, JSON and plain forms, and the framing.

Variants are written through their modules, because names repeat across them::

    from superfluid_protocol import GenParams, decode, encode, request, response

    frame = encode(request.Append(session=1, text="hello", span=()))
    value, consumed = decode(request.Request, frame)
"""

from superfluid_protocol import event, numbers, request, response, types
from superfluid_protocol.errors import DecodeError, EncodeError, Reason
from superfluid_protocol.framing import MAX_FRAME, FrameDecoder, FrameTooLarge, encode_frame
from superfluid_protocol.json_form import from_json, to_json
from superfluid_protocol.plain import from_plain, to_plain
from superfluid_protocol.postcard import decode, encode
from superfluid_protocol.request import Request
from superfluid_protocol.response import Response
from superfluid_protocol.schema import (
    EXTENSION_BASE,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    MAX_DEPTH,
    U8,
    U16,
    U32,
    U64,
    Bool,
    Bytes,
    Bytes16,
    Sealed,
    Span,
    Str,
    variants,
)
from superfluid_protocol.types import (
    EventBody,
    EventMsg,
    GenParams,
    Inspection,
    LedgerEntry,
    ModelInfo,
    PurgeMode,
    RebaseEdit,
    SessionSummary,
    Tier,
)

__all__ = [
    "EXTENSION_BASE",
    "F32",
    "F64",
    "I8",
    "I16",
    "I32",
    "I64",
    "MAX_DEPTH",
    "MAX_FRAME",
    "U8",
    "U16",
    "U32",
    "U64",
    "Bool",
    "Bytes",
    "Bytes16",
    "DecodeError",
    "EncodeError",
    "EventBody",
    "EventMsg",
    "FrameDecoder",
    "FrameTooLarge",
    "GenParams",
    "Inspection",
    "LedgerEntry",
    "ModelInfo",
    "PurgeMode",
    "Reason",
    "RebaseEdit",
    "Request",
    "Response",
    "Sealed",
    "SessionSummary",
    "Span",
    "Str",
    "Tier",
    "decode",
    "encode",
    "encode_frame",
    "event",
    "from_json",
    "from_plain",
    "numbers",
    "request",
    "response",
    "to_json",
    "to_plain",
    "types",
    "variants",
]

"""The golden vectors of ``protocol/vectors`` and the wire types that their Rust names mean."""

import json
from pathlib import Path

import superfluid_protocol as wire

FOLDER = Path(__file__).parents[2] / "protocol" / "vectors"

_PRIMITIVES = {
    "u8": wire.U8,
    "u16": wire.U16,
    "u32": wire.U32,
    "u64": wire.U64,
    "i8": wire.I8,
    "i16": wire.I16,
    "i32": wire.I32,
    "i64": wire.I64,
    "f32": wire.F32,
    "f64": wire.F64,
    "bool": wire.Bool,
    "String": wire.Str,
    "Vec<u8>": wire.Bytes,
    "()": tuple[()],
}


def load(name: str) -> list[dict]:
    """The lines of one vector file."""
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def type_named(name: str) -> object:
    """The declaration that a Rust type's name stands for."""
    if name in _PRIMITIVES:
        return _PRIMITIVES[name]
    if name.startswith("Vec<"):
        return tuple[type_named(name[4:-1]), ...]
    if name.startswith("Option<"):
        return type_named(name[7:-1]) | None
    if name.startswith("("):
        return tuple[tuple(type_named(part) for part in name[1:-1].split(","))]
    return getattr(wire, name)


def type_of_line(line: dict) -> object:
    """The declaration of a line's value."""
    return type_named(line.get("rust") or line["type"])

"""superfluid: a session server for local LLMs.

The session, not the request, is the unit: an append-only log of committed events, each with the
exact token ids it put on the model's input. ``superfluid/README.md`` shows the way of one turn
through the folders here.
"""

__version__ = "0.1.0"

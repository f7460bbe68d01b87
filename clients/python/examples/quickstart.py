#!/usr/bin/env python3
"""Talk to the running daemon: create a session, stream a reply, go on where it was cut.

Start a daemon first: superfluid serve smollm2
"""

from superfluid_client import Client


def main() -> None:
    with Client.connect() as client:
        session = client.create_session(system="You answer in one sentence.", title="quickstart")
        session.user("What is a lighthouse for?")

        # Text comes as it is committed: whatever was printed is in the session's log already.
        stream = session.stream(max_tokens=16)
        for piece in stream:
            print(piece, end="", flush=True)

        # A reply that was cut (by its limit, a cancel, a crash) leaves the turn open; generating again continues it.
        if stream.result.is_cut:
            print(session.generate(max_tokens=16).text, end="")
        print()

        for event in session.events():
            print(event.event_id, type(event.body).__name__)


if __name__ == "__main__":
    main()

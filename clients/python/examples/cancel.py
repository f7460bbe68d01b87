#!/usr/bin/env python3
"""Stop a reply in the middle, and try again from before it.

Start a daemon first: superfluid serve smollm2
"""

from superfluid_client import Client, NothingInFlight


def main() -> None:
    with Client.connect() as client:
        session = client.create_session(title="cancel")
        question = session.user("Count from one to one thousand.")

        stream = session.stream(max_tokens=64)
        for count, piece in enumerate(stream):
            print(piece, end="", flush=True)
            if count == 3:
                try:
                    session.cancel()
                except NothingInFlight:
                    print("[it was over already]", end="")
        print(
            f"\nfinish {stream.result.finish!r}, {stream.result.tokens_generated} tokens, all of them committed"
        )

        # The session keeps what was said. A trimmed copy goes on from the question instead.
        again = session.trim(question.event_id + 1)
        print(f"session {again.id}: {again.generate(max_tokens=8).text!r}")


if __name__ == "__main__":
    main()

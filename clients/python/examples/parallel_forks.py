#!/usr/bin/env python3
"""Ask one session several questions at once, with trio: each in a fork that starts warm.

Start a daemon first: superfluid serve smollm2
"""

import trio

from superfluid_client import AsyncClient, AsyncSession

QUESTIONS = ("Who lives there?", "What colour is it?", "How tall is it?")


async def main() -> None:
    async with await AsyncClient.connect() as client:
        session = await client.create_session(title="parallel forks")
        await session.user("There is a lighthouse on a small island. Describe it.")
        await session.generate(max_tokens=24)

        async with trio.open_nursery() as nursery:
            for question in QUESTIONS:
                nursery.start_soon(ask, await session.fork(), question)


async def ask(fork: AsyncSession, question: str) -> None:
    await fork.user(question)
    reply = await fork.generate(max_tokens=16)
    print(f"session {fork.id}: {question} {reply.text!r} ({reply.warm_prefix} tokens warm)")


if __name__ == "__main__":
    trio.run(main)

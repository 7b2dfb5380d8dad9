"""Ask two questions at once and print both answers as they come.

    python examples/stream.py [MODEL]

Everything here is asynchronous: `async with`, and the methods that begin with an `a`.
"""

import asyncio
import sys

from antfarm import Colony, Model

QUESTIONS = ("Name three planets.", "What do ants eat?")


async def show(model: Model, question: str) -> None:
    async for piece in model.astream(question, max_tokens=48, temperature=0):
        print(f"{question:20} {piece!r}")


async def main() -> None:
    async with Colony(foragers=2) as colony:
        model = await colony.aload(sys.argv[1] if len(sys.argv) > 1 else "smollm2", split=2)
        await asyncio.gather(*(show(model, question) for question in QUESTIONS))


if __name__ == "__main__":
    asyncio.run(main())

"""Answer many callers at once on asyncio: the model has its own thread, and their texts run together."""

import asyncio
import sys

import glinfer


async def main(model: glinfer.ThreadedModel) -> None:
    async def answer(name: str) -> str:  # in a web server, the handler of a request
        return "".join([piece async for piece in model.astream(f"{name}:", max_tokens=40, seed=1)])

    for text in await asyncio.gather(*map(answer, ("ROMEO", "JULIET", "NURSE"))):
        print(repr(text))
    try:  # a caller disconnects: its text ends, and its slot is free
        await asyncio.wait_for(model.agenerate("O", max_tokens=100_000), timeout=0.5)
    except asyncio.TimeoutError:
        print("stopped")


with glinfer.ThreadedModel(sys.argv[1] if len(sys.argv) > 1 else "shakespeare") as model:
    asyncio.run(main(model))

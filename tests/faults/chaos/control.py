"""A loop that only ticks, beside the load: its delays are those of the machine.

Prints one line for each tick that is late, "INSTANT SECONDS", by the monotonic clock.
"""

from __future__ import annotations

import asyncio
import time

TICK = 0.001
LATE = 0.0015


async def main() -> None:
    before = time.monotonic()
    while True:
        await asyncio.sleep(TICK)
        now = time.monotonic()
        if now - before - TICK > LATE:
            print(f"{now:.6f} {now - before - TICK:.6f}", flush=True)
        before = now


if __name__ == "__main__":
    asyncio.run(main())

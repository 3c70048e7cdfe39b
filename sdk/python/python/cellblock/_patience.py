"""A time limit on something awaited, in the task that awaits it.

Up to Python 3.11 `asyncio.wait_for` may swallow a cancellation that comes together with the result; the cell of a task that was
cancelled would then run on. Here a cancellation always arrives.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Awaitable, TypeVar

T = TypeVar("T")

if sys.version_info >= (3, 11):

    async def within(work: Awaitable[T], seconds: float) -> T:
        """What `work` gives, or TimeoutError."""
        async with asyncio.timeout(seconds):
            return await work

else:

    async def within(work: Awaitable[T], seconds: float) -> T:
        """What `work` gives, or asyncio.TimeoutError."""
        task = asyncio.current_task()
        assert task is not None, "it is awaited in a task"
        is_over = False

        def expire() -> None:
            nonlocal is_over
            is_over = True
            task.cancel()

        timer = asyncio.get_running_loop().call_later(seconds, expire)
        try:
            return await work
        except asyncio.CancelledError:
            if is_over:
                raise asyncio.TimeoutError from None
            raise
        finally:
            timer.cancel()

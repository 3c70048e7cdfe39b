"""The time limit on something awaited."""

from __future__ import annotations

import asyncio
import unittest

from cellblock._patience import within


class TestWithin(unittest.TestCase):
    """What a task hears, whatever comes at the same moment."""

    def test_a_result_in_time_is_given_and_a_late_one_is_a_timeout(self) -> None:
        async def work() -> None:
            self.assertEqual(await within(asyncio.sleep(0, "x"), 10), "x")
            with self.assertRaises(asyncio.TimeoutError):
                await within(asyncio.sleep(10), 0.01)
            self.assertEqual(await within(asyncio.sleep(0, "y"), 10), "y")

        asyncio.run(work())

    def test_a_cancellation_that_comes_together_with_the_result_arrives(self) -> None:
        async def work() -> None:
            result: asyncio.Future[str] = asyncio.get_running_loop().create_future()

            async def wait() -> str:
                return await result

            task = asyncio.ensure_future(within(wait(), 10))
            await asyncio.sleep(0)
            result.set_result("x")
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        asyncio.run(work())


if __name__ == "__main__":
    unittest.main()

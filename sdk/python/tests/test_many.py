"""One client, many users at once."""

from __future__ import annotations

import asyncio
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from support import both_modes

THREADS = 16
TASKS = 100
SESSIONS = 4


class ManyAtOnce:
    def test_sixteen_threads_share_a_client(self) -> None:
        client = self.client()
        sessions = [f"threads-{self.mode}-{number}" for number in range(SESSIONS)]
        for session in sessions:
            client.run_code("seen = []", session_id=session)
        together = threading.Barrier(THREADS)

        def work(number: int) -> None:
            session = sessions[number % SESSIONS]
            together.wait(60)
            for turn in range(5):
                result = client.run_code(
                    f"seen.append({(number, turn)}); {number}", session_id=session
                )
                self.assertEqual(result.output, f"{number}\n")
                client.files.upload(str(number).encode(), f"{number}.txt", session_id=session)
                self.assertEqual(
                    client.files.read(f"{number}.txt", session_id=session), str(number).encode()
                )

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(THREADS)))
        for session in sessions:
            counted = client.run_code("len(set(seen)), len(seen)", session_id=session)
            self.assertEqual(
                counted.output, f"({THREADS // SESSIONS * 5}, {THREADS // SESSIONS * 5})\n"
            )
            client.stop(session_id=session)

    def test_a_hundred_tasks_share_a_client(self) -> None:
        async def work() -> None:
            async with self.async_client() as client:
                sessions = [f"tasks-{self.mode}-{number}" for number in range(SESSIONS)]

                async def one(number: int) -> None:
                    streamed = []
                    result = await client.run_code(
                        f"print({number})",
                        on_stdout=streamed.append if number % 2 else None,
                        timeout=30,
                        session_id=sessions[number % SESSIONS],
                    )
                    self.assertEqual(result.stdout, f"{number}\n")
                    self.assertEqual("".join(streamed), f"{number}\n" * (number % 2))

                await asyncio.gather(*(one(number) for number in range(TASKS)))
                for session in sessions:
                    await client.stop(session_id=session)

        asyncio.run(work())

    def test_the_interpreter_is_free_while_a_thread_waits(self) -> None:
        client = self.client()
        client.run_code("1")
        done = threading.Event()

        def wait() -> None:
            client.run_code("import time; time.sleep(1)")
            done.set()

        thread = threading.Thread(target=wait)
        thread.start()
        turns = 0
        longest = 0.0
        while not done.is_set():
            before = time.perf_counter()
            turns += 1
            done.wait(0.001)
            longest = max(longest, time.perf_counter() - before)
        thread.join()
        # Held for the whole second, the lock would let this thread take one turn, and that one would be long.
        self.assertGreater(turns, 50)
        self.assertLess(longest, 0.5)


both_modes(ManyAtOnce)

if __name__ == "__main__":
    unittest.main()

"""Both clients and both workers while the server is killed with SIGKILL and started again."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter, defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import quayside.aio
from quayside import Quayside, Reservation, Retry, Worker

from .support import ClientTest, restart_server

#: How often the server is killed; `npm run test:crash:python` sets a larger number.
KILLS = int(os.environ.get("PYTHON_KILLS", "1"))
#: Tasks that insert at once.
PRODUCERS = 10
#: Before the first kill, and after each.
INSERTS = 20
PATIENCE = 120.0
RETRY = Retry(attempts=1000, max=1.0)
LEASE = 1.0


class Restart(ClientTest):
    def setUp(self) -> None:
        super().setUp()
        # A busy machine starts a server slowly.
        self.client = Quayside(retry=RETRY, timeout=PATIENCE)
        self.addCleanup(self.client.close)
        self.queue = self.client.queue(self.queue.name)
        self.inserted: list[str] = []
        #: The ids under which each insert arrived.
        self.worked: defaultdict[str, set[str]] = defaultdict(set)
        self.runs: Counter[str] = Counter()
        self.progress = threading.Semaphore(0)
        self.stopping = threading.Event()

    def test_no_element_is_lost_and_none_is_stored_twice(self) -> None:
        worker = Worker(self.queue, self._record, lease=LEASE).on("error", lambda error: None)
        with worker, ThreadPoolExecutor() as threads:
            blocking = threads.submit(self._insert_blocking)
            gathered = threads.submit(lambda: asyncio.run(self._insert_and_work(blocking)))
            try:
                self._await_inserts()
                for _ in range(KILLS):
                    restart_server()
                    self._await_inserts()
            finally:
                self.stopping.set()
            blocking.result()
            gathered.result()
        self.assertEqual(sorted(self.worked), sorted(self.inserted))
        self.assertEqual([data for data, ids in self.worked.items() if len(ids) != 1], [])
        again = sum(count > 1 for count in self.runs.values())
        print(f"{KILLS} kills, {len(self.inserted)} inserted, {again} delivered more than once")

    def _await_inserts(self) -> None:
        """Returns when more elements have been inserted."""
        while self.progress.acquire(blocking=False):
            pass
        for _ in range(INSERTS):
            # A producer that failed releases no more.
            self.assertTrue(self.progress.acquire(timeout=PATIENCE))

    def _note(self, data: str) -> None:
        self.inserted.append(data)
        self.progress.release()

    def _record(self, job: Reservation[Any] | quayside.aio.Reservation[Any]) -> None:
        self.worked[job.data].add(job.id)
        self.runs[job.data] += 1

    def _insert_blocking(self) -> None:
        number = 0
        while not self.stopping.is_set():
            self.queue.insert(f"blocking {number}")
            self._note(f"blocking {number}")
            number += 1

    async def _insert_and_work(self, blocking: Future[None]) -> None:
        async with quayside.aio.Quayside(retry=RETRY, timeout=PATIENCE) as client:
            queue = client.queue(self.queue.name)

            async def insert(producer: int) -> None:
                number = producer
                while not self.stopping.is_set():
                    await queue.insert(f"gathered {number}")
                    self._note(f"gathered {number}")
                    number += PRODUCERS

            async def record(job: quayside.aio.Reservation[Any]) -> None:
                self._record(job)

            worker = quayside.aio.Worker(queue, record, lease=LEASE).on("error", lambda error: None)
            async with worker:
                await asyncio.gather(*(insert(producer) for producer in range(PRODUCERS)))
                # Its last insert may be in flight.
                await asyncio.wrap_future(blocking)
                # Elements whose reservation was lost with the server come again when their lease ends.
                while (await queue.status()).total > 0:
                    await asyncio.sleep(0.01)

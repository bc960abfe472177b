"""Both clients and both workers while the server is killed with SIGKILL and started again."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import Any

import quayside.aio
from quayside import Reservation, Worker

from .support import ClientTest, restart_server

#: Tasks that insert at once.
PRODUCERS = 10
#: What each client inserts after the restart, at least.
AFTER_RESTART = 20
LEASE = 1.0


class Restart(ClientTest):
    def setUp(self) -> None:
        super().setUp()
        self.inserted: list[str] = []
        #: The ids under which each insert arrived.
        self.worked: defaultdict[str, set[str]] = defaultdict(set)
        self.restarted = threading.Event()

    def test_no_element_is_lost_and_none_is_stored_twice(self) -> None:
        threads = [
            threading.Thread(target=self._insert_blocking),
            threading.Thread(target=lambda: asyncio.run(self._insert_and_work())),
        ]
        with Worker(self.queue, self._record, lease=LEASE).on("error", lambda error: None):
            for thread in threads:
                thread.start()
            restart_server()
            self.restarted.set()
            for thread in threads:
                thread.join()
        self.assertEqual(sorted(self.worked), sorted(self.inserted))
        self.assertEqual([number for number, ids in self.worked.items() if len(ids) != 1], [])

    def _record(self, job: Reservation[Any]) -> None:
        self.worked[job.data].add(job.id)

    def _insert_blocking(self) -> None:
        rest = AFTER_RESTART
        number = 0
        while rest > 0:
            self.queue.insert(f"blocking {number}")
            self.inserted.append(f"blocking {number}")
            number += 1
            rest -= self.restarted.is_set()

    async def _insert_and_work(self) -> None:
        async with quayside.aio.Quayside() as client:
            queue = client.queue(self.queue.name)

            async def insert(producer: int) -> None:
                rest = AFTER_RESTART // PRODUCERS
                number = producer
                while rest > 0:
                    await queue.insert(f"gathered {number}")
                    self.inserted.append(f"gathered {number}")
                    number += PRODUCERS
                    rest -= self.restarted.is_set()

            async def record(job: quayside.aio.Reservation[Any]) -> None:
                self.worked[job.data].add(job.id)

            worker = quayside.aio.Worker(queue, record, lease=LEASE).on("error", lambda error: None)
            async with worker:
                await asyncio.gather(*(insert(producer) for producer in range(PRODUCERS)))
                # Elements whose reservation was lost with the server come again when their lease ends.
                while (await queue.status()).total > 0:
                    await asyncio.sleep(0.01)

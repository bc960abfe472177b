"""The blocking worker against a real server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from typing import Any
from unittest.mock import patch

from quayside import Bury, Reservation, RetryLater, Stopped, Worker
from quayside.protocol import Settlement

from .support import ClientTest

#: Workers in a process of their own. They print a line for each job, and what `run` returned.
BLOCKING = """
import sys
from quayside import Quayside, Reservation, Worker

def handle(job: Reservation) -> None:
    print("job", job.data, flush=True)
    if job.data == "hang":
        job.lost.wait()

with Quayside() as client:
    print(Worker(client.queue(sys.argv[1]), handle, lease=float(sys.argv[2])).run(grace=float(sys.argv[3])), flush=True)
"""

AIO = """
import asyncio
import sys
from quayside.aio import Quayside, Reservation, Worker

async def handle(job: Reservation) -> None:
    print("job", job.data, flush=True)
    if job.data == "hang":
        await asyncio.Event().wait()

async def main() -> None:
    async with Quayside() as client:
        worker = Worker(client.queue(sys.argv[1]), handle, lease=float(sys.argv[2]))
        print(await worker.run(grace=float(sys.argv[3])), flush=True)

asyncio.run(main())
"""


class Workers(ClientTest):
    def test_what_returns_is_committed_and_what_raises_is_rolled_back(self) -> None:
        tries: Counter[str] = Counter()
        done = threading.Event()

        def handle(job: Reservation[Any]) -> None:
            tries[job.data] += 1
            if job.data == "fragile" and job.tries < 2:
                raise RuntimeError("not yet")
            if job.data == "later" and job.tries == 0:
                raise RetryLater(0.01)
            if job.data == "poison":
                raise Bury("cannot be parsed")

        self.queue.insert_many(["good", "fragile", "later", "poison"])
        given: list[tuple[int, str]] = []

        def backoff(failed: int, error: BaseException) -> float:
            given.append((failed, str(error)))
            if failed == 1:
                raise OSError("a backoff that fails means the retry delay of the queue")
            return 0.001

        settled: Counter[str] = Counter()
        worker = Worker(self.queue, handle, backoff=backoff)
        worker.on("rolled_back", lambda job, error: settled.update(["rolled_back"]))

        def committed(job: Reservation[Any], seconds: float) -> None:
            settled.update(["committed"])
            if settled["committed"] == 3:
                done.set()

        with self.assertLogs("quayside", "ERROR"), worker.on("committed", committed):
            done.wait()
        self.assertEqual(tries, {"good": 1, "fragile": 3, "later": 2, "poison": 1})
        self.assertEqual([entry for entry in given if entry[1] == "not yet"], [(0, "not yet"), (1, "not yet")])
        self.assertEqual(settled["rolled_back"], 4)
        self.assertEqual(self.queue.status().total, 0)
        dead = self.client.queue("N/__deadletter__").pop()
        assert dead is not None
        self.assertEqual((dead.data, dead.headers["x-dl-reason"]), ("poison", "cannot be parsed"))

    def test_jobs_that_arrive_while_it_is_stopped_are_released_which_counts_no_try(self) -> None:
        self.queue.insert_many(["a", "b"])
        taken, held = threading.Event(), threading.Event()
        take_once = self.queue.take_once

        def late(*args: Any, **options: Any) -> list[Reservation[Any]]:
            jobs = take_once(*args, **options)
            taken.set()
            held.wait()
            return jobs

        def handle(job: Reservation[Any]) -> None:
            raise AssertionError("it was started")

        # Its stop cancels the take that is in flight.
        cancelled = patch.object(self.queue, "cancel", lambda *_: held.set())
        with patch.object(self.queue, "take_once", late), cancelled:
            worker = Worker(self.queue, handle, concurrency=2).start()
            taken.wait()
            self.assertEqual(worker.stop(), Stopped(finished=0, returned=2))
        jobs = list(self.queue.elements(wait=0))
        self.assertEqual([(job.data, job.tries) for job in jobs], [("a", 0), ("b", 0)])
        for job in jobs:
            job.commit()

    def test_as_many_handlers_run_at_once_as_concurrency_says(self) -> None:
        together = threading.Barrier(3)
        self.queue.insert_many([0, 1, 2])
        ended = threading.Semaphore(0)
        with Worker(self.queue, lambda job: together.wait(), concurrency=3) as worker:
            worker.on("committed", lambda job, seconds: ended.release())
            for _ in range(3):
                ended.acquire()

    def test_leases_are_renewed_while_a_handler_runs(self) -> None:
        self.queue.insert("long")
        lost: list[bool] = []
        done = threading.Event()

        def handle(job: Reservation[Any]) -> None:
            ends = {job.lease_until}
            while len(ends) < 3 and not job.lost.wait(0.01):
                ends.add(job.lease_until)
            lost.append(job.lost.is_set())

        with Worker(self.queue, handle, lease=0.9) as worker:
            worker.on("committed", lambda job, seconds: done.set())
            done.wait()
        self.assertEqual(lost, [False])
        self.assertEqual(self.queue.status().total, 0)

    def test_a_lost_lease_is_shown_to_the_handler_and_nothing_is_settled(self) -> None:
        self.queue.insert("stolen")
        lost = threading.Event()

        def handle(job: Reservation[Any]) -> None:
            self.queue.settle([Settlement("rollback", job.receipt, delay=3600)], None)
            job.lost.wait()

        with Worker(self.queue, handle, lease=0.6) as worker:
            worker.on("lease_lost", lambda job: lost.set())
            lost.wait()
        self.assertEqual(self.queue.status().scheduled, 1)

    def test_a_handler_that_takes_too_long_loses_its_job(self) -> None:
        self.queue.insert("slow")
        ended = threading.Event()

        def handle(job: Reservation[Any]) -> None:
            if job.tries == 0:
                job.lost.wait()
            else:
                ended.set()

        with Worker(self.queue, handle, lease=0.6, handler_timeout=0.1):
            ended.wait()
        self.assertEqual(self.queue.status().total, 0)

    def test_stop_waits_for_handlers_and_returns_what_does_not_end(self) -> None:
        self.queue.insert_many(["hang", "quick"])
        hanging = threading.Event()
        finished = threading.Event()

        def handle(job: Reservation[Any]) -> None:
            if job.data == "hang":
                hanging.set()
                job.lost.wait()

        worker = Worker(self.queue, handle, concurrency=2)
        worker.on("committed", lambda job, seconds: finished.set())
        worker.start()
        hanging.wait()
        finished.wait()
        stopped = worker.stop(grace=0.2)
        self.assertEqual((stopped, worker.stop()), (Stopped(1, 1), Stopped(1, 1)))
        job = self.queue.reserve()
        assert job is not None
        self.assertEqual((job.data, job.tries), ("hang", 1))
        job.commit()

    def test_a_paused_worker_takes_nothing(self) -> None:
        done = threading.Event()
        worker = Worker(self.queue, lambda job: None)
        worker.on("committed", lambda job, seconds: done.set())
        with worker:
            worker.pause()
            self.queue.insert("waits")
            found = self.queue.pop(wait=None)
            assert found is not None
            worker.resume()
            self.queue.insert("worked on")
            done.wait()

    def test_wrong_arguments_name_the_value(self) -> None:
        with self.assertRaisesRegex(ValueError, "concurrency=0"):
            Worker(self.queue, lambda job: None, concurrency=0)
        with self.assertRaisesRegex(ValueError, "'done' must be one of taken"):
            Worker(self.queue, lambda job: None).on("done", lambda: None)


class Processes(ClientTest):
    def test_sigterm_ends_a_worker_and_returns_its_job(self) -> None:
        for program in (BLOCKING, AIO):
            process = self._worker(program, lease=60, grace=0.2)
            self.queue.insert("a")
            self.assertEqual(process.stdout.readline(), "job a\n")
            self.queue.insert("hang")
            self.assertEqual(process.stdout.readline(), "job hang\n")
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.stdout.readline(), "Stopped(finished=1, returned=1)\n")
            self.assertEqual(process.wait(), 0)
            job = self.queue.reserve()
            assert job is not None
            self.assertEqual(job.data, "hang")
            job.commit()

    def test_a_second_signal_ends_a_worker_that_waits_for_its_handlers(self) -> None:
        process = self._worker(BLOCKING, lease=60, grace=3600)
        self.queue.insert("hang")
        self.assertEqual(process.stdout.readline(), "job hang\n")
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
        self.assertEqual(process.returncode, -signal.SIGTERM)

    def test_the_jobs_of_a_killed_worker_come_again(self) -> None:
        process = self._worker(BLOCKING, lease=0.5, grace=0.2)
        self.queue.insert("hang")
        self.assertEqual(process.stdout.readline(), "job hang\n")
        process.kill()
        process.wait()
        with self.queue.reserve(wait=None) or self.fail() as job:
            self.assertEqual((job.data, job.tries), ("hang", 1))

    def _worker(self, program: str, *, lease: float, grace: float) -> Any:
        process = subprocess.Popen(
            [sys.executable, "-c", program, self.queue.name, str(lease), str(grace)],
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        assert process.stdout is not None
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

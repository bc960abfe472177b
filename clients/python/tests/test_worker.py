"""The blocking worker against a real server."""

from __future__ import annotations

import functools
import os
import queue as queues
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from unittest.mock import patch

from quayside import (
    Bury,
    ConnectionError,
    LeaseLostError,
    Quayside,
    QuaysideError,
    Reservation,
    RetryLater,
    Stopped,
    TimeoutError,
    ValidationError,
    Worker,
    WorkerEvent,
    aio,
)
from quayside.protocol import Request, Settlement
from quayside.transport import TimedResponse
from quayside.working import pause_after

from .support import URL, ClientTest


async def listen() -> None:
    raise AssertionError("nobody awaits it")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no text")

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


def generate(job: object) -> Iterator[None]:
    raise AssertionError("nobody runs it")
    yield


async def generate_async(job: object) -> AsyncIterator[None]:
    raise AssertionError("nobody runs it")
    yield


class Generator:
    def __call__(self, job: object) -> Iterator[None]:
        return (yield)


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
        worker.on("buried", lambda job, error: settled.update(["buried"]))

        def committed(job: Reservation[Any], seconds: float) -> None:
            settled.update(["committed"])
            if settled["committed"] == 3:
                done.set()

        with self.assertLogs("quayside", "ERROR"), worker.on("committed", committed):
            done.wait()
        self.assertEqual(tries, {"good": 1, "fragile": 3, "later": 2, "poison": 1})
        self.assertEqual([entry for entry in given if entry[1] == "not yet"], [(0, "not yet"), (1, "not yet")])
        self.assertEqual((settled["rolled_back"], settled["buried"]), (3, 1))
        self.assertEqual(self.queue.status().total, 0)
        dead = self.client.queue("N/__deadletter__").pop()
        assert dead is not None
        self.assertEqual((dead.data, dead.headers["x-dl-reason"]), ("poison", "cannot be parsed"))

    def test_a_last_try_that_fails_is_reported_as_buried(self) -> None:
        self.client.request("PUT", f"/q/{self.queue.name}/options", body='{"deadLetter": {"maxTries": 2}}')
        self.queue.insert_many(["fails", "takes too long"])
        events: list[tuple[str, str]] = []
        done = threading.Event()

        def handle(job: Reservation[Any]) -> None:
            if job.data == "fails":
                raise RuntimeError("no")
            job.lost.wait()

        def note(event: str) -> Callable[[Reservation[Any], BaseException], None]:
            def listener(job: Reservation[Any], error: BaseException) -> None:
                events.append((event, job.data))
                if len(events) == 4:
                    done.set()

            return listener

        worker = Worker(self.queue, handle, handler_timeout=0.05)
        worker.on("rolled_back", note("rolled_back")).on("buried", note("buried"))
        with worker:
            done.wait()
        expected = [(event, data) for event in ("buried", "rolled_back") for data in ("fails", "takes too long")]
        self.assertEqual(sorted(events), expected)
        dead = self.client.queue("N/__deadletter__")
        while dead.pop() is not None:
            pass

    def test_a_lease_begins_with_its_response_however_long_the_rest_takes_to_arrive(self) -> None:
        self.queue.insert("x")
        begun: list[float] = []
        read = TimedResponse.read

        def timed(response: TimedResponse, *args: Any) -> bytes:
            begun.append(time.monotonic())
            return read(response, *args)

        with patch.object(TimedResponse, "read", timed):
            (job,) = self.queue.take_once(1, wait=0, group=None, lease=30, consumer="c")
        self.assertLessEqual(job.lease_ends_at, begun[0] + 30)
        job.commit()

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

    def test_a_lease_that_a_handler_extended_further_is_not_shortened(self) -> None:
        options = Request("PUT", f"/q/{self.queue.name}/options", b'{"lease": 3600}', "application/json")
        self.client.send(options, None)
        self.queue.insert_many(["renewed", "extended", "extended by the queue's lease"])
        renewed = threading.Event()
        shortened: list[bool] = []
        committed = threading.Semaphore(0)

        def handle(job: Reservation[Any]) -> None:
            ends = {job.lease_until}
            if job.data != "renewed":
                until = job.extend(3600 if job.data == "extended" else None)
                renewed.wait()
                shortened.append(job.lease_until != until)
                return
            while len(ends) < 4:
                job.lost.wait(0.01)
                ends.add(job.lease_until)
            renewed.set()

        with Worker(self.queue, handle, concurrency=3, lease=0.9) as worker:
            worker.on("committed", lambda job, seconds: committed.release())
            for _ in range(3):
                committed.acquire()
        self.assertEqual(shortened, [False, False])

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

    def test_a_handler_that_takes_too_long_loses_its_job_however_long_the_lease_is(self) -> None:
        self.queue.insert("slow")
        rolled_back = threading.Event()
        errors: list[BaseException] = []

        def backoff(tries: int, error: BaseException) -> float:
            errors.append(error)
            return 3600

        worker = Worker(self.queue, lambda job: job.lost.wait(), lease=36_000, handler_timeout=0.1, backoff=backoff)
        with worker.on("rolled_back", lambda job, error: rolled_back.set()):
            rolled_back.wait()
        self.assertEqual([type(error) for error in errors], [TimeoutError])
        (element,) = self.queue.browse()
        self.assertEqual((element.state, element.tries), ("scheduled", 1))
        self.assertIn("took more than 0.1 s", element.reason or "")

    def test_whatever_a_handler_raises_settles_its_job_and_no_other(self) -> None:
        raised: dict[str, BaseException] = {
            "negative delay": RetryLater(-1),
            "no delay": RetryLater(float("nan")),
            "no number": RetryLater("soon"),  # type: ignore[arg-type]
            "no backoff": ValueError("x"),
            "long": ValueError("x" * 5_000_000),
            "unprintable": Unprintable(),
            "no text": Bury(ValueError("no text")),  # type: ignore[arg-type]
            "exit": SystemExit(1),
        }
        self.queue.insert_many([*raised, "good"])
        ended = threading.Semaphore(0)
        errors: list[QuaysideError] = []

        def handle(job: Reservation[Any]) -> None:
            if job.tries == 0 and job.data in raised:
                raise raised[job.data]

        worker = Worker(self.queue, handle, concurrency=9, backoff=lambda tries, error: float("nan"))
        worker.on("error", errors.append)
        events: list[WorkerEvent] = ["rolled_back", "buried", "committed"]
        for event in events:
            worker.on(event, lambda *_: ended.release())
        with self.assertLogs("quayside", "ERROR"), worker:
            # All, and once more those that were not buried.
            for _ in range(9 + 7):
                ended.acquire()
        self.assertEqual(errors, [])
        self.assertEqual(self.queue.status().total, 0)

    def test_a_worker_survives_a_function_for_credentials_that_raises(self) -> None:
        self.queue.insert("x")
        failing, failed, done = threading.Event(), threading.Semaphore(0), threading.Event()

        def authorize() -> str:
            if failing.is_set():
                raise OSError("no token")
            return "Basic dGVzdDE6dGVzdDE="

        def handle(job: Reservation[Any]) -> None:
            if job.tries == 0:
                failing.set()

        with Quayside(URL, auth=authorize) as client:
            worker = Worker(client.queue(self.queue.name), handle, concurrency=1, lease=0.5)
            errors: list[QuaysideError] = []

            def note(error: QuaysideError) -> None:
                errors.append(error)
                failed.release()

            worker.on("error", note).on("committed", lambda job, seconds: done.set())
            with worker:
                # Of the commit, and of the next take.
                for _ in range(2):
                    failed.acquire()
                failing.clear()
                done.wait()
        self.assertEqual({error.code for error in errors}, {"failed"})
        self.assertEqual(str(errors[0]), "OSError: no token (failed)")

    def test_a_worker_stops_if_its_client_is_closed(self) -> None:
        client = Quayside()
        stopped = threading.Event()
        worker = Worker(client.queue(self.queue.name), lambda job: None)
        worker.on("error", lambda error: None).on("stopped", stopped.set)
        client.close()
        worker.start()
        stopped.wait()
        self.assertEqual(worker.stop(), Stopped(0, 0))

    def test_a_worker_that_is_started_again_does_nothing_twice(self) -> None:
        with Worker(self.queue, lambda job: None) as worker:
            self.assertIs(worker.start(), worker)
        self.assertIs(worker.start(), worker)
        self.assertEqual(worker.stop(), Stopped(0, 0))

    def test_a_worker_may_be_resumed_before_its_pause_has_ended(self) -> None:
        cancelled, resumed, done = threading.Event(), threading.Event(), threading.Event()
        cancel = self.queue.cancel
        cancels = 0

        def slow_cancel(*given: Any) -> None:
            nonlocal cancels
            cancels += 1
            cancelled.set()
            resumed.wait()
            cancel(*given)

        worker = Worker(self.queue, lambda job: None)
        worker.on("committed", lambda job, seconds: done.set())
        with patch.object(self.queue, "cancel", slow_cancel), worker:
            while not worker._is_taking:
                pass
            pausing = threading.Thread(target=worker.pause)
            pausing.start()
            cancelled.wait()
            worker.resume()
            resumed.set()
            pausing.join()
            self.queue.insert("x")
            done.wait()
        # Of the pause, and of the end; a few more if a cancel overtook its take.
        self.assertLess(cancels, 10)

    def test_several_threads_may_stop_a_worker(self) -> None:
        stops: list[Any] = []
        worker = Worker(self.queue, lambda job: None).on("stopped", lambda: stops.append("stopped")).start()
        threads = [threading.Thread(target=lambda: stops.append(worker.stop())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(stops, ["stopped", *[Stopped(0, 0)] * 4])

    def test_all_jobs_that_do_not_end_are_returned_at_once_with_one_request(self) -> None:
        self.queue.insert_many([0, 1, 2])
        hanging = threading.Barrier(4)

        def handle(job: Reservation[Any]) -> None:
            hanging.wait()
            job.lost.wait()

        worker = Worker(self.queue, handle, concurrency=3).start()
        hanging.wait()
        with patch.object(self.queue, "settle", wraps=self.queue.settle) as settle:
            self.assertEqual(worker.stop(grace=0), Stopped(0, 3))
        self.assertEqual(settle.call_count, 1)
        self.assertEqual(self.queue.status().ready, 3)

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

    def test_a_commit_that_is_being_sent_when_the_grace_period_ends_is_waited_for(self) -> None:
        self.queue.insert("x")
        settling, may_settle = threading.Event(), threading.Event()
        settle = self.queue.settle

        def slow(settlements: Any, timeout: Any) -> Any:
            settling.set()
            may_settle.wait()
            return settle(settlements, timeout)

        stopped: list[Stopped] = []
        grace_over = threading.Event()
        worker = Worker(self.queue, lambda job: None, concurrency=1)
        give_up = worker._give_up

        def give_up_the_rest(jobs: Any) -> Any:
            grace_over.set()
            return give_up(jobs)

        with patch.object(self.queue, "settle", slow), patch.object(worker, "_give_up", give_up_the_rest):
            worker.start()
            settling.wait()
            stopping = threading.Thread(target=lambda: stopped.append(worker.stop(grace=0)))
            stopping.start()
            grace_over.wait()
            may_settle.set()
            stopping.join()
        self.assertEqual(stopped, [Stopped(finished=1, returned=0)])
        self.assertEqual(self.queue.status().total, 0)

    def test_a_commit_that_failed_is_repeated_until_its_lease_ends(self) -> None:
        self.queue.insert("x")
        failures = [ConnectionError("connection-failed", "unavailable", outcome="unknown") for _ in range(3)]
        errors: list[QuaysideError] = []
        committed = threading.Event()
        settle = self.queue.settle

        def unavailable(settlements: Any, timeout: Any) -> Any:
            if len(errors) < len(failures):
                raise failures[len(errors)]
            return settle(settlements, timeout)

        worker = Worker(self.queue, lambda job: None, lease=600)
        worker.on("error", errors.append).on("committed", lambda job, seconds: committed.set())
        with patch.object(self.queue, "settle", unavailable), worker:
            self.assertTrue(committed.wait(60))
        self.assertEqual(errors, failures)
        self.assertEqual(self.queue.status().total, 0)

    def test_a_commit_that_failed_is_repeated_once_if_the_worker_is_stopped_during_the_pause(self) -> None:
        self.queue.insert("x")
        failures = [ConnectionError("connection-failed", "unavailable", outcome="unknown")]
        worker = Worker(self.queue, lambda job: None, lease=600).on("error", lambda error: None)
        stopped = threading.Event()
        worker.on("stopped", stopped.set)
        settle, wait = self.queue.settle, worker._stopping.wait

        def unavailable(settlements: Any, timeout: Any) -> Any:
            if failures:
                raise failures.pop()
            return settle(settlements, timeout)

        def stopped_while_waiting(seconds: float) -> bool:
            threading.Thread(target=worker.stop).start()
            return wait(60)

        with patch.object(self.queue, "settle", unavailable), patch.object(
            worker._stopping, "wait", stopped_while_waiting
        ):
            worker.start()
            stopped.wait()
        self.assertEqual(self.queue.status().total, 0)

    def test_a_commit_that_failed_is_not_repeated_if_the_worker_was_stopped(self) -> None:
        self.queue.insert("x")
        errors: list[QuaysideError] = []
        unavailable = ConnectionError("connection-failed", "unavailable", outcome="unknown")
        worker = Worker(self.queue, lambda job: worker.stop(), lease=600).on("error", errors.append)
        stopped = threading.Event()
        worker.on("stopped", stopped.set)
        with patch.object(self.queue, "settle", side_effect=unavailable):
            worker.start()
            stopped.wait()
        self.assertEqual(errors, [unavailable])
        self.assertEqual(self.queue.status().reserved, 1)

    def test_a_commit_that_failed_is_not_repeated_once_its_lease_has_ended(self) -> None:
        self.queue.insert("x")
        jobs: list[Reservation[Any]] = []
        errors: list[QuaysideError] = []
        unavailable = ConnectionError("connection-failed", "unavailable", outcome="unknown")
        errors_before: list[int] = []
        delivered_again = threading.Event()
        settle = self.queue.settle

        def handle(job: Reservation[Any]) -> None:
            jobs.append(job)
            errors_before.append(len(errors))
            if len(jobs) > 1:
                worker.stop()
                delivered_again.set()

        def fail_after_lease(settlements: Any, timeout: Any) -> Any:
            if settlements[0].action == "extend":
                return settle(settlements, timeout)
            while time.monotonic() < jobs[-1].lease_ends_at:
                time.sleep(0)
            raise unavailable

        worker = Worker(self.queue, handle, concurrency=1, lease=0.05).on("error", errors.append)
        with patch.object(self.queue, "settle", fail_after_lease), worker:
            self.assertTrue(delivered_again.wait(60))
        self.assertEqual(errors_before[:2], [0, 1])

    def test_a_renewal_that_ends_after_the_handler_does_not_decide_about_the_job(self) -> None:
        self.queue.insert("x")
        events: list[str] = []
        renewing = threading.Event()
        committing = threading.Event()
        committed = threading.Event()
        settle = self.queue.settle

        def settle_late(settlements: Any, timeout: Any) -> Any:
            if settlements[0].action == "extend":
                renewing.set()
                committing.wait(60)
                return [LeaseLostError("not-found", "settled")]
            if not committing.is_set():
                raise ConnectionError("connection-failed", "unavailable", outcome="unknown")
            return settle(settlements, timeout)

        worker = Worker(self.queue, lambda job: renewing.wait(60), lease=600)
        worker.on("error", lambda error: committing.set())
        worker.on("lease_lost", lambda job: events.append("lease_lost"))
        worker.on("committed", lambda job, seconds: events.append("committed"))
        worker.on("committed", lambda job, seconds: committed.set())
        often = patch.multiple("quayside.worker", RENEWALS=60_000, is_renewal_due=lambda *_: True)
        with often, patch.object(self.queue, "settle", settle_late), worker:
            self.assertTrue(committed.wait(60))
        self.assertEqual(events, ["committed"])

    def test_a_listener_or_a_handler_may_stop_the_worker_and_run_returns(self) -> None:
        events: list[WorkerEvent] = ["idle", "taken", "committed"]
        for event in events:
            # Not a list: the listener of `idle` may return after `run`, whose thread may have ended the worker.
            stopped: queues.SimpleQueue[Stopped] = queues.SimpleQueue()
            if event != "idle":
                self.queue.insert("x")
            worker = Worker(self.queue, lambda job: None)
            worker.on(event, lambda *_: stopped.put(worker.stop(grace=3600)))
            with patch("quayside.worker.POLL_SECONDS", 0.01):
                worker.run()
            self.assertEqual(stopped.get(), Stopped(0, 0))

        def handle(job: Reservation[Any]) -> None:
            worker.stop(grace=3600)

        done = threading.Event()
        self.queue.insert("x")
        worker = Worker(self.queue, handle).on("committed", lambda job, seconds: done.set())
        worker.run()
        done.wait()
        self.assertEqual(self.queue.status().total, 0)

    def test_handlers_that_stop_the_worker_at_the_same_time_do_not_wait_for_each_other(self) -> None:
        self.queue.insert_many([0, 1, 2])
        together = threading.Barrier(3)

        def handle(job: Reservation[Any]) -> None:
            together.wait()
            worker.stop(grace=3600)

        with Quayside() as client:
            worker = Worker(client.queue(self.queue.name), handle, concurrency=3)
            self.assertEqual(worker.run(), Stopped(finished=3, returned=0))
        self.assertEqual(self.queue.status().total, 0)

    def test_run_waits_for_the_job_of_a_handler_that_stopped_the_worker_and_renews_its_lease(self) -> None:
        self.queue.insert("long")
        lost: list[bool] = []

        def handle(job: Reservation[Any]) -> None:
            worker.stop(grace=3600)
            ends = {job.lease_until}
            while len(ends) < 3 and not job.lost.wait(0.01):
                ends.add(job.lease_until)
            lost.append(job.lost.is_set())

        with Quayside() as client:
            worker = Worker(client.queue(self.queue.name), handle, lease=0.9)
            self.assertEqual(worker.run(), Stopped(finished=1, returned=0))
        self.assertEqual(lost, [False])
        self.assertEqual(self.queue.status().total, 0)

    def test_leases_are_renewed_if_a_listener_stops_the_worker_when_another_job_is_lost(self) -> None:
        self.queue.insert_many(["lost", "long"])
        taken: dict[str, Reservation[Any]] = {}
        both = threading.Event()
        renewals: list[int] = []

        def handle(job: Reservation[Any]) -> None:
            if job.data == "lost":
                job.lost.wait()
                worker._stopping.wait()
                return
            worker._stopping.wait()
            ends = {job.lease_until}
            for _ in range(500):
                if len(ends) == 3 or job.lost.wait(0.01):
                    break
                ends.add(job.lease_until)
            renewals.append(len(ends))

        def note(job: Reservation[Any]) -> None:
            taken[job.data] = job
            if len(taken) == 2:
                both.set()

        with Quayside() as client:
            worker = Worker(client.queue(self.queue.name), handle, concurrency=2, lease=0.9)
            worker.on("taken", note).on("lease_lost", lambda job: worker.stop(grace=3600)).start()
            both.wait()
            # As an operator does. The worker notices when it renews the lease.
            self.queue.settle([Settlement("release", taken["lost"].receipt)], None)
            worker._stopping.wait()
            self.assertEqual(worker.stop(grace=3600).returned, 0)
        self.assertEqual(renewals, [3])
        self.assertEqual([element.data for element in self.queue.browse()], ["lost"])

    def test_a_later_stop_may_shorten_the_grace_period(self) -> None:
        self.queue.insert("hang")
        hanging = threading.Event()

        def handle(job: Reservation[Any]) -> None:
            hanging.set()
            job.lost.wait()

        worker = Worker(self.queue, handle).start()
        hanging.wait()
        patient = threading.Thread(target=worker.stop, args=(float("inf"),))
        patient.start()
        worker._stopping.wait()
        self.assertEqual(worker.stop(grace=0), Stopped(finished=0, returned=1))
        patient.join()
        self.assertEqual(self.queue.status().ready, 1)

    def test_a_worker_that_is_stopped_without_a_grace_period_takes_nothing_more(self) -> None:
        worker = Worker(self.queue, lambda job: None).start()
        waiting = Request("GET", f"/q/{self.queue.name}/consumers")
        while self.client.send(waiting, None).body == b"[]":
            pass
        self.assertEqual(worker.stop(grace=0), Stopped(0, 0))
        self.assertEqual(self.client.send(waiting, None).body, b"[]")

    def test_a_worker_takes_again_when_the_server_asks_for_it_but_not_with_all_others_at_once(self) -> None:
        pauses: list[float] = []
        enough = threading.Event()

        def busy(*args: Any, **options: Any) -> Any:
            raise QuaysideError("overloaded", "busy", status=503, retry_after=3.0 if len(pauses) < 4 else 3600.0)

        def wait(seconds: float) -> bool:
            pauses.append(seconds)
            if len(pauses) == 5:
                enough.set()
            return False

        worker = Worker(self.queue, lambda job: None).on("error", lambda error: None)
        with patch.object(self.queue, "take_once", busy), patch.object(worker._stopping, "wait", wait), worker:
            enough.wait()
        self.assertEqual(pauses[:5], [3.0, 3.0, 3.0, 3.0, 5.0])
        refused = QuaysideError("forbidden", "no right", status=403)
        many = {pause_after(1, refused) for _ in range(100)}
        self.assertGreater(len(many), 50)
        self.assertLessEqual(max(many), 0.1)
        self.assertGreaterEqual(min(many), 0.05)

    def test_a_listener_that_exits_ends_no_thread_of_the_worker(self) -> None:
        self.queue.insert("x")
        done = threading.Event()
        worker = Worker(self.queue, lambda job: None)
        worker.on("taken", lambda job: sys.exit(1)).on("committed", lambda job, seconds: done.set())
        with self.assertLogs("quayside", "ERROR"), worker:
            done.wait()
        self.assertEqual(self.queue.status().total, 0)

    def test_a_worker_that_is_stopped_while_nothing_came_returns_nothing(self) -> None:
        taking, held = threading.Event(), threading.Event()

        def nothing(*args: Any, **options: Any) -> list[Reservation[Any]]:
            taking.set()
            held.wait()
            return []

        cancelled = patch.object(self.queue, "cancel", lambda *_: held.set())
        with patch.object(self.queue, "take_once", nothing), cancelled, patch.object(self.queue, "settle") as settle:
            worker = Worker(self.queue, lambda job: None).start()
            taking.wait()
            self.assertEqual(worker.stop(), Stopped(0, 0))
        settle.assert_not_called()

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
        for kind in (Worker, aio.Worker):
            make: Any = kind
            for concurrency in (0, "8", 1.5):
                with self.assertRaisesRegex(ValueError, f"concurrency={concurrency!r} must be"):
                    make(self.queue, lambda job: None, concurrency=concurrency)
            with self.assertRaisesRegex(ValueError, "handler None must be"):
                make(self.queue, None)
            for generator in (generate, generate_async, Generator(), functools.partial(generate)):
                with self.assertRaisesRegex(ValueError, "handler .*[gG]enerat.* must not be a generator function"):
                    make(self.queue, generator)
            with self.assertRaisesRegex(ValueError, "queue 'N/orders' must be"):
                make("N/orders", lambda job: None)
        other: Any = aio.Quayside().queue(self.queue.name)
        with self.assertRaisesRegex(ValueError, r"must be a queue of a client, quayside\.Quayside"):
            Worker(other, lambda job: None)
        mine: Any = self.queue
        with self.assertRaisesRegex(ValueError, r"must be a queue of a client, quayside\.aio\.Quayside"):
            aio.Worker(mine, lambda job: listen())
        for name, worker in (("lease", Worker), ("handler_timeout", Worker), ("lease", aio.Worker)):
            for value in (0, -1, float("nan")):
                with self.assertRaisesRegex(ValidationError, f"{name}={value}"):
                    worker(self.queue, lambda job: None, **{name: value})
        with self.assertRaisesRegex(ValueError, "listener 'listen' of idle must not be a coroutine function"):
            Worker(self.queue, lambda job: None).on("idle", listen)
        with self.assertRaisesRegex(ValueError, "'done' must be one of taken"):
            Worker(self.queue, lambda job: None).on("done", lambda: None)  # type: ignore[arg-type]


    def test_a_job_whose_handler_returns_an_awaitable_is_rolled_back_not_committed(self) -> None:
        async def handle(job: object) -> None:
            raise AssertionError("nobody runs it")

        class Handler:
            async def __call__(self, job: object) -> None:
                raise AssertionError("nobody runs it")

        with self.assertRaisesRegex(ValueError, "handler 'handle' must not be a coroutine function"):
            Worker(self.queue, handle)
        others: list[Callable[[object], object]] = [functools.partial(handle), Handler()]
        for handler in others:
            with self.assertRaisesRegex(ValueError, "handler .* must not be a coroutine function"):
                Worker(self.queue, handler)
        functions: list[Callable[[object], object]] = [handle, generate, generate_async]
        for number, function in enumerate(functions, 1):
            self.queue.insert("work")
            found: list[BaseException] = []
            done = threading.Event()
            worker = Worker(self.queue, lambda job: function(job), backoff=lambda tries, error: 60)
            worker.on("rolled_back", lambda job, error: found.append(error))
            worker.on("rolled_back", lambda job, error: done.set())
            with worker:
                done.wait()
            self.assertIsInstance(found[0], TypeError)
            self.assertEqual(self.queue.status().scheduled, number)


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

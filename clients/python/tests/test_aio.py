"""The asyncio client and worker against a real server."""

from __future__ import annotations

import asyncio
import time
import unittest
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from unittest import mock

from quayside.aio import (
    Bury,
    ConnectionError,
    LeaseLostError,
    Quayside,
    QuaysideError,
    Queue,
    Reservation,
    Retry,
    SelectorFailure,
    Stopped,
    StoppedError,
    TimeoutError,
    ValidationError,
    Worker,
)
from quayside.aio import transport
from quayside.aio.transport import Transport
from quayside.protocol import Request, Response, Settlement, authorization_of

from .support import URL, fresh_name


class AioTest(unittest.IsolatedAsyncioTestCase):
    client: Quayside
    queue: Queue[Any]

    async def asyncSetUp(self) -> None:
        self.client = Quayside()
        self.addAsyncCleanup(self.client.close)
        self.queue = self.client.queue(fresh_name())

    async def taken(self) -> list[Any]:
        found = []
        while (element := await self.queue.pop()) is not None:
            found.append(element.data)
        return found


class Clients(AioTest):
    async def test_data_return_as_they_were_inserted(self) -> None:
        for data in [{"order": 1, "name": "Ülä €"}, "text", b"\xff\x00\n"]:
            element_id = await self.queue.insert(data, headers={"lang": "en"})
            element = await self.queue.pop()
            assert element is not None
            self.assertEqual((element.id, element.data, element.headers), (element_id, data, {"lang": "en"}))

    async def test_concurrent_inserts_share_requests_and_keep_their_order(self) -> None:
        with recorded() as requests:
            ids = await asyncio.gather(*(self.queue.insert(number) for number in range(60)))
        self.assertEqual(len(set(ids)), 60)
        self.assertEqual(len(requests), 1)
        self.assertEqual(await self.taken(), list(range(60)))

    async def test_a_rejected_insert_does_not_fail_those_that_share_its_request(self) -> None:
        inserts = [
            self.queue.insert("a"),
            self.queue.insert("b", headers={"bad name": "x"}),
            self.queue.insert("c", idempotency_key="key"),
            self.queue.insert("d", idempotency_key="key"),
            self.queue.insert("e", idempotency_key=False),
        ]
        results = await asyncio.gather(*inserts, return_exceptions=True)
        codes = [result.code if isinstance(result, QuaysideError) else None for result in results]
        self.assertEqual(codes, [None, "invalid-header", None, "idempotency-mismatch", None])
        self.assertEqual(sorted(await self.taken()), ["a", "c", "e"])

    async def test_an_insert_that_is_rejected_for_its_groups_does_not_fail_those_that_share_its_request(self) -> None:
        stream = self.client.queue(fresh_name().replace("N/", "events/"))
        groups = [["default"], ["a"], ["default"], [f"more-{number}" for number in range(64)], ["b"]]
        await stream.insert("first", groups=[f"group-{number}" for number in range(62)])
        inserts = [stream.insert(names, groups=names) for names in groups]
        results = await asyncio.gather(*inserts, return_exceptions=True)
        codes = [result.code if isinstance(result, QuaysideError) else "stored" for result in results]
        self.assertEqual(codes, ["stored", "stored", "stored", "too-many-groups", "stored"])
        self.assertEqual((await stream.status()).total, 5)

    async def test_concurrent_commits_share_requests_and_each_has_its_own_result(self) -> None:
        await self.queue.insert_many([0, 1, 2])
        jobs = await self.queue.reserve_many(3)
        await self.queue.settle([Settlement("commit", jobs[1].receipt)], None)
        with recorded() as requests:
            results = await asyncio.gather(
                jobs[0].rollback(reason="no"), jobs[1].commit(), jobs[2].commit(), return_exceptions=True
            )
        self.assertEqual([type(result) for result in results], [str, LeaseLostError, type(None)])
        self.assertEqual(len(requests), 1)
        self.assertEqual(await self.taken(), [0])

    async def test_a_settlement_with_a_wrong_argument_does_not_fail_those_that_share_its_request(self) -> None:
        wrong: list[Callable[[Reservation[Any]], Awaitable[Any]]] = [
            lambda job: job.rollback(delay=float("nan")),
            lambda job: job.rollback(delay=-1),
            lambda job: job.rollback(delay=1e12),
            lambda job: job.rollback(reason=ValueError("no text")),  # type: ignore[arg-type]
            lambda job: job.extend(0),
        ]
        for settle in wrong:
            await self.queue.insert_many([1, 2, 3])
            first, second, third = await self.queue.reserve_many(3)
            results = await asyncio.gather(
                first.commit(), settle(second), third.commit(), return_exceptions=True
            )
            self.assertEqual([type(result) for result in results], [type(None), ValidationError, type(None)])
            await second.commit()
        self.assertEqual((await self.queue.status()).total, 0)

    async def test_a_block_commits_or_rolls_back(self) -> None:
        await self.queue.insert_many(["good", "bad"])
        with self.assertRaises(KeyError):
            async for job in self.queue.elements(wait=0):
                async with job:
                    if job.data == "bad":
                        raise KeyError("reason")
        (element,) = [element async for element in self.queue.browse()]
        self.assertEqual((element.data, element.tries, element.reason), ("bad", 1, "KeyError: 'reason'"))
        self.assertEqual((await self.queue.status()).total, 1)

    async def test_a_cancelled_call_takes_nothing(self) -> None:
        waiting = asyncio.ensure_future(self.queue.pop(wait=None))
        while (await self._consumers()) == 0:
            await asyncio.sleep(0)
        waiting.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await waiting
        while (await self._consumers()) > 0:
            await asyncio.sleep(0)
        await self.queue.insert("kept")
        self.assertEqual(await self.taken(), ["kept"])

    async def test_an_insert_that_is_cancelled_while_it_waits_is_not_sent(self) -> None:
        held = asyncio.Event()
        send = Transport.send

        async def hold(self: Transport, request: Request, timeout: float) -> Response:
            await held.wait()
            return await send(self, request, timeout)

        with mock.patch.object(Transport, "send", hold):
            # Two requests are in flight, so that the third insert waits.
            sent = []
            for number in range(2):
                sent.append(asyncio.ensure_future(self.queue.insert(number)))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            waiting = asyncio.ensure_future(self.queue.insert("cancelled"))
            with self.assertRaises(TimeoutError):
                await self.queue.insert("late", timeout=0.01)
            waiting.cancel()
            held.set()
            await asyncio.gather(*sent)
        self.assertEqual(await self.taken(), [0, 1])

    async def test_a_reservation_that_is_settled_is_not_extended_and_not_lost(self) -> None:
        await self.queue.insert("x")
        job = await self.queue.reserve()
        assert job is not None
        committed, extended = await asyncio.gather(job.commit(), job.extend(), return_exceptions=True)
        self.assertIsNone(committed)
        self.assertEqual([getattr(extended, "code", None)], ["already-settled"])

    async def test_a_rejected_insert_names_no_line_since_its_caller_sent_none(self) -> None:
        results = await asyncio.gather(
            self.queue.insert(1), self.queue.insert(2, headers={"": "x"}), return_exceptions=True
        )
        self.assertRegex(str(results[1]), '^Header ""')

    async def test_few_inserts_are_sent_again_however_many_of_a_request_are_invalid(self) -> None:
        sent = 0
        send = Transport.send

        async def count(transport: Transport, request: Request, timeout: float) -> Response:
            nonlocal sent
            sent += request.body.count(b"\n") + 1
            return await send(transport, request, timeout)

        with mock.patch.object(Transport, "send", count):
            results = await asyncio.gather(
                *(self.queue.insert(number, headers={"": "x"} if number % 9 else None) for number in range(64)),
                return_exceptions=True,
            )
        self.assertEqual([getattr(result, "code", None) for result in results[:3]], [None, "invalid-header", "invalid-header"])
        self.assertLess(sent, 64 * 8)
        self.assertEqual(await self.taken(), list(range(0, 64, 9)))

    async def test_a_commit_that_was_cancelled_may_be_tried_again(self) -> None:
        await self.queue.insert("a")
        job = await self.queue.reserve()
        assert job is not None
        commit = asyncio.ensure_future(job.commit())
        await asyncio.sleep(0)
        commit.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await commit
        await job.commit()

    async def test_the_longest_reasons_do_not_make_a_request_too_large(self) -> None:
        await self.queue.insert_many(list(range(500)))
        jobs = await self.queue.reserve_many(500)
        await asyncio.gather(*(job.bury("x" * 100_000) for job in jobs))
        self.assertEqual((await self.queue.status()).total, 0)
        async for job in self.client.queue("N/__deadletter__").elements(wait=0):
            await job.commit()

    async def test_many_pages_are_browsed_and_a_queue_is_paused(self) -> None:
        await self.queue.insert_many(list(range(150)))
        self.assertEqual([element.data async for element in self.queue.browse()], list(range(150)))
        failures: list[SelectorFailure] = []
        where = "env.msg.payload.missing.member"
        found = [element async for element in self.queue.browse(where=where, on_selector_error=failures.append)]
        self.assertEqual((found, sum(failure.failed for failure in failures)), ([], 150))
        await self.queue.pause()
        self.assertIsNone(await self.queue.pop())
        await self.queue.resume()
        self.assertIsNotNone(await self.queue.pop())

    async def test_a_body_that_is_rejected_before_it_has_arrived_is_too_large(self) -> None:
        with self.assertRaises(QuaysideError) as raised:
            await self.queue.insert("x" * 20_000_000)
        self.assertEqual((raised.exception.code, raised.exception.outcome), ("body-too-large", "nothing-changed"))
        # The connection with the rest of the body is not used again.
        await self.queue.pop()

    async def test_a_function_for_credentials_need_not_be_a_coroutine_function(self) -> None:
        authorization = authorization_of(None)
        async with Quayside(URL, auth=lambda: authorization) as client:
            self.assertEqual((await client.queue(self.queue.name).status()).total, 0)

    async def test_a_request_sends_any_call_of_the_http_interface(self) -> None:
        element_id = await self.queue.insert("x", delay=3600)
        path = f"/q/{self.queue.name}"
        self.assertEqual((await self.client.request("DELETE", f"{path}/{element_id}")).status, 204)
        await self.client.request("POST", path, body=b"\xff", content_type="image/png")
        taken = await self.client.request("GET", path)
        self.assertEqual((taken.body, taken.headers["content-type"]), (b"\xff", "image/png"))
        with self.assertRaises(QuaysideError) as raised:
            await self.client.request("GET", f"{path}?to=0")
        self.assertEqual(raised.exception.code, "pop-timeout")
        await self.client.close()
        with self.assertRaises(StoppedError):
            await self.client.request("GET", "/q")

    async def test_failures_name_their_outcome(self) -> None:
        async with Quayside("http://127.0.0.1:9", retry=Retry(attempts=2, min=0.001)) as client:
            with self.assertRaises(ConnectionError) as raised:
                await client.queue("N/q").insert("a")
        self.assertEqual(raised.exception.outcome, "nothing-changed")

        async def wrong() -> str:
            return "Basic d3Jvbmc6d3Jvbmc="

        async with Quayside(URL, auth=wrong) as client:
            with self.assertRaises(QuaysideError) as rejected:
                await client.queue("N/q").status()
        self.assertEqual(rejected.exception.code, "unauthorized")

    async def _consumers(self) -> int:
        response = await self.client.send(Request("GET", f"/q/{self.queue.name}/consumers"))
        return response.body.count(b'"tid"')


class Workers(AioTest):
    async def test_what_returns_is_committed_and_what_raises_is_rolled_back(self) -> None:
        await self.queue.insert_many(["good", "fragile", "poison"])
        tries: Counter[str] = Counter()
        committed = asyncio.Semaphore(0)

        async def handle(job: Reservation[Any]) -> None:
            tries[job.data] += 1
            if job.data == "fragile" and job.tries == 0:
                raise RuntimeError("not yet")
            if job.data == "poison":
                raise Bury("cannot be parsed")

        worker = Worker(self.queue, handle).on("committed", lambda job, seconds: committed.release())
        async with worker:
            for _ in range(2):
                await committed.acquire()
        self.assertEqual(tries, {"good": 1, "fragile": 2, "poison": 1})
        dead = await self.client.queue("N/__deadletter__").pop(wait=None)
        assert dead is not None
        self.assertEqual((dead.data, dead.headers["x-dl-reason"]), ("poison", "cannot be parsed"))

    async def test_a_last_try_that_fails_is_reported_as_buried(self) -> None:
        options = '{"deadLetter": {"maxTries": 2}}'
        await self.client.request("PUT", f"/q/{self.queue.name}/options", body=options)
        await self.queue.insert("fails")

        async def handle(job: Reservation[Any]) -> None:
            raise RuntimeError("no")

        ended: asyncio.Queue[str] = asyncio.Queue()
        worker = Worker(self.queue, handle)
        worker.on("rolled_back", lambda job, error: ended.put_nowait("rolled_back"))
        worker.on("buried", lambda job, error: ended.put_nowait("buried"))
        async with worker:
            self.assertEqual([await ended.get() for _ in range(2)], ["rolled_back", "buried"])
        self.assertIsNotNone(await self.client.queue("N/__deadletter__").pop(wait=None))

    async def test_inserts_and_settlements_say_what_became_of_them(self) -> None:
        first = await self.queue.insert("a", idempotency_key="key")
        second = await self.queue.insert("a", idempotency_key="key")
        self.assertEqual((second, second.is_repeat, first.is_repeat), (first, True, False))
        job = await self.queue.reserve()
        assert job is not None
        self.assertEqual(await job.rollback(), "waiting")
        job = await self.queue.reserve()
        assert job is not None
        self.assertEqual(await job.bury("of no use"), "dead-lettered")
        self.assertIsNotNone(await self.client.queue("N/__deadletter__").pop(wait=None))

    async def test_a_handler_may_be_a_plain_function_or_return_an_awaitable_but_no_generator(self) -> None:
        async def work(job: Reservation[Any]) -> None:
            ran.append(job.data)

        def generate(job: Reservation[Any]) -> Iterator[None]:
            ran.append("a generator")
            yield

        def handle(job: Reservation[Any]) -> object:
            if job.data == "plain":
                ran.append(job.data)
                return "done"
            return work(job) if job.data == "awaitable" else generate(job)

        ran: list[str] = []
        ended: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        worker = Worker(self.queue, handle, concurrency=1, handler_timeout=60, backoff=lambda tries, error: 60)
        worker.on("committed", lambda job, seconds: ended.put_nowait((job.data, "committed")))
        worker.on("rolled_back", lambda job, error: ended.put_nowait((job.data, type(error).__name__)))
        await self.queue.insert_many(["plain", "awaitable", "generator"])
        async with worker:
            results = [await ended.get() for _ in range(3)]
        self.assertEqual(ran, ["plain", "awaitable"])
        self.assertEqual(results, [("plain", "committed"), ("awaitable", "committed"), ("generator", "TypeError")])

    async def test_a_lease_begins_with_its_response_however_long_the_rest_takes_to_arrive(self) -> None:
        await self.queue.insert("x")
        begun: list[float] = []
        read = transport.read_body

        async def timed(*args: Any) -> tuple[bytes, bool]:
            begun.append(time.monotonic())
            return await read(*args)

        with mock.patch.object(transport, "read_body", timed):
            (job,) = await self.queue.take_once(1, wait=0, group=None, lease=30, consumer="c")
        self.assertLessEqual(job.lease_ends_at, begun[0] + 30)
        await job.commit()

    async def test_jobs_that_arrive_while_it_is_stopped_are_released_which_counts_no_try(self) -> None:
        await self.queue.insert_many(["a", "b"])
        taken, held = asyncio.Event(), asyncio.Event()
        take_once = self.queue.take_once

        async def late(*args: Any, **options: Any) -> list[Reservation[Any]]:
            jobs = await take_once(*args, **options)
            taken.set()
            await held.wait()
            return jobs

        async def handle(job: Reservation[Any]) -> None:
            raise AssertionError("it was started")

        async def cancelled(*_: object) -> None:
            held.set()

        # Its stop cancels the take that is in flight.
        with mock.patch.multiple(self.queue, take_once=late, cancel=cancelled):
            worker = Worker(self.queue, handle, concurrency=2).start()
            await taken.wait()
            self.assertEqual(await worker.stop(), Stopped(finished=0, returned=2))
        jobs = [job async for job in self.queue.elements(wait=0)]
        self.assertEqual([(job.data, job.tries) for job in jobs], [("a", 0), ("b", 0)])
        for job in jobs:
            await job.commit()

    async def test_leases_are_renewed_and_a_lost_one_cancels_the_handler(self) -> None:
        await self.queue.insert_many(["long", "stolen"])
        cancelled = asyncio.Event()
        committed = asyncio.Event()

        async def handle(job: Reservation[Any]) -> None:
            if job.data == "stolen":
                await self.queue.settle([Settlement("rollback", job.receipt, delay=3600)], None)
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.set()
            ends = {job.lease_until}
            while len(ends) < 3:
                await asyncio.sleep(0.01)
                ends.add(job.lease_until)

        worker = Worker(self.queue, handle, lease=0.9).on("committed", lambda job, seconds: committed.set())
        async with worker:
            await cancelled.wait()
            await committed.wait()
        self.assertEqual((await self.queue.status()).scheduled, 1)

    async def test_a_lease_that_a_handler_extended_further_is_not_shortened(self) -> None:
        options = Request("PUT", f"/q/{self.queue.name}/options", b'{"lease": 3600}', "application/json")
        await self.client.send(options, None)
        await self.queue.insert_many(["renewed", "extended", "extended by the queue's lease"])
        renewed = asyncio.Event()
        shortened: list[bool] = []
        committed = asyncio.Semaphore(0)

        async def handle(job: Reservation[Any]) -> None:
            ends = {job.lease_until}
            if job.data != "renewed":
                until = await job.extend(3600 if job.data == "extended" else None)
                await renewed.wait()
                shortened.append(job.lease_until != until)
                return
            while len(ends) < 4:
                await asyncio.sleep(0.01)
                ends.add(job.lease_until)
            renewed.set()

        async with Worker(self.queue, handle, lease=0.9) as worker:
            worker.on("committed", lambda job, seconds: committed.release())
            for _ in range(3):
                await committed.acquire()
        self.assertEqual(shortened, [False, False])

    async def test_a_handler_that_takes_too_long_is_cancelled_and_rolled_back(self) -> None:
        await self.queue.insert("slow")
        ended = asyncio.Event()

        async def handle(job: Reservation[Any]) -> None:
            if job.tries == 0:
                await asyncio.Event().wait()
            if job.tries == 1:
                raise asyncio.TimeoutError("of its own")

        errors: list[BaseException] = []
        worker = Worker(self.queue, handle, handler_timeout=0.5).on("committed", lambda job, seconds: ended.set())
        async with worker.on("rolled_back", lambda job, error: errors.append(error)):
            await ended.wait()
        self.assertEqual(
            [str(error) for error in errors], ["The handler took more than 0.5 s. (timeout)", "of its own"]
        )

    async def test_a_commit_that_is_being_sent_when_the_grace_period_ends_is_waited_for(self) -> None:
        await self.queue.insert("x")
        settling, may_settle = asyncio.Event(), asyncio.Event()
        settle = self.queue.settle

        async def slow(settlements: Any, timeout: Any) -> Any:
            settling.set()
            await may_settle.wait()
            return await settle(settlements, timeout)

        async def handle(job: Reservation[Any]) -> None:
            pass

        with mock.patch.object(self.queue, "settle", slow):
            worker = Worker(self.queue, handle).start()
            await settling.wait()
            stopping = asyncio.ensure_future(worker.stop(grace=0))
            while worker._renewer and not worker._renewer.done():
                await asyncio.sleep(0.001)
            may_settle.set()
            self.assertEqual(await stopping, Stopped(finished=1, returned=0))
        self.assertEqual((await self.queue.status()).total, 0)

    async def test_a_commit_that_failed_is_repeated_until_its_lease_ends(self) -> None:
        await self.queue.insert("x")
        failures = [ConnectionError("connection-failed", "unavailable", outcome="unknown") for _ in range(3)]
        errors: list[QuaysideError] = []
        committed = asyncio.Event()
        settle = self.queue.settle

        async def unavailable(settlements: Any, timeout: Any) -> Any:
            if len(errors) < len(failures):
                raise failures[len(errors)]
            return await settle(settlements, timeout)

        worker = Worker(self.queue, lambda job: None, lease=600)
        worker.on("error", errors.append).on("committed", lambda job, seconds: committed.set())
        with mock.patch.object(self.queue, "settle", unavailable):
            async with worker:
                await asyncio.wait_for(committed.wait(), 60)
        self.assertEqual(errors, failures)
        self.assertEqual((await self.queue.status()).total, 0)

    async def test_a_commit_that_failed_is_repeated_once_if_the_worker_is_stopped_during_the_pause(self) -> None:
        await self.queue.insert("x")
        failures = [ConnectionError("connection-failed", "unavailable", outcome="unknown")]
        worker = Worker(self.queue, lambda job: None, lease=600).on("error", lambda error: None)
        stopped = asyncio.Event()
        worker.on("stopped", stopped.set)
        settle, wait = self.queue.settle, worker._stopping.wait
        stopping: list[asyncio.Future[Any]] = []

        async def unavailable(settlements: Any, timeout: Any) -> Any:
            if failures:
                raise failures.pop()
            return await settle(settlements, timeout)

        def stopped_while_waiting() -> Any:
            stopping.append(asyncio.ensure_future(worker.stop()))
            return wait()

        with mock.patch.object(self.queue, "settle", unavailable):
            with mock.patch.object(worker._stopping, "wait", stopped_while_waiting):
                worker.start()
                await stopped.wait()
        self.assertEqual((await self.queue.status()).total, 0)

    async def test_a_commit_that_failed_is_not_repeated_if_the_worker_was_stopped(self) -> None:
        await self.queue.insert("x")
        errors: list[QuaysideError] = []
        unavailable = ConnectionError("connection-failed", "unavailable", outcome="unknown")
        worker = Worker(self.queue, lambda job: worker.stop(), lease=600).on("error", errors.append)
        stopped = asyncio.Event()
        worker.on("stopped", stopped.set)
        with mock.patch.object(self.queue, "settle", side_effect=unavailable):
            worker.start()
            await stopped.wait()
        self.assertEqual(errors, [unavailable])
        self.assertEqual((await self.queue.status()).reserved, 1)

    async def test_a_commit_that_failed_is_not_repeated_once_its_lease_has_ended(self) -> None:
        await self.queue.insert("x")
        jobs: list[Reservation[Any]] = []
        errors: list[QuaysideError] = []
        unavailable = ConnectionError("connection-failed", "unavailable", outcome="unknown")
        errors_before: list[int] = []
        delivered_again = asyncio.Event()
        settle = self.queue.settle

        async def handle(job: Reservation[Any]) -> None:
            jobs.append(job)
            errors_before.append(len(errors))
            if len(jobs) > 1:
                await worker.stop()
                delivered_again.set()

        async def fail_after_lease(settlements: Any, timeout: Any) -> Any:
            if settlements[0].action == "extend":
                return await settle(settlements, timeout)
            while time.monotonic() < jobs[-1].lease_ends_at:
                await asyncio.sleep(0)
            raise unavailable

        worker = Worker(self.queue, handle, concurrency=1, lease=0.05).on("error", errors.append)
        with mock.patch.object(self.queue, "settle", fail_after_lease):
            async with worker:
                await asyncio.wait_for(delivered_again.wait(), 60)
        self.assertEqual(errors_before[:2], [0, 1])

    async def test_a_renewal_that_ends_after_the_handler_does_not_decide_about_the_job(self) -> None:
        await self.queue.insert("x")
        events: list[str] = []
        renewing = asyncio.Event()
        committing = asyncio.Event()
        committed = asyncio.Event()
        settle = self.queue.settle

        async def settle_late(settlements: Any, timeout: Any) -> Any:
            if settlements[0].action == "extend":
                renewing.set()
                await committing.wait()
                return [LeaseLostError("not-found", "settled")]
            if not committing.is_set():
                raise ConnectionError("connection-failed", "unavailable", outcome="unknown")
            return await settle(settlements, timeout)

        worker = Worker(self.queue, lambda job: renewing.wait(), lease=600)
        worker.on("error", lambda error: committing.set())
        worker.on("lease_lost", lambda job: events.append("lease_lost"))
        worker.on("committed", lambda job, seconds: events.append("committed"))
        worker.on("committed", lambda job, seconds: committed.set())
        often = mock.patch.multiple("quayside.aio.worker", RENEWALS=60_000, is_renewal_due=lambda *_: True)
        with often, mock.patch.object(self.queue, "settle", settle_late):
            async with worker:
                await asyncio.wait_for(committed.wait(), 60)
        self.assertEqual(events, ["committed"])

    async def test_a_worker_takes_no_more_at_once_than_the_server_allows(self) -> None:
        await self.queue.insert("x")
        done = asyncio.Event()

        async def handle(job: Reservation[Any]) -> None:
            done.set()

        async with Worker(self.queue, handle, concurrency=1_001):
            await done.wait()

    async def test_run_returns_if_the_worker_is_stopped(self) -> None:
        async def handle(job: Reservation[Any]) -> None:
            raise AssertionError("there is none")

        worker = Worker(self.queue, handle)
        running = asyncio.ensure_future(worker.run())
        await asyncio.sleep(0)
        await worker.stop()
        self.assertEqual(await running, Stopped(0, 0))

    async def test_a_worker_that_is_started_again_does_nothing_twice(self) -> None:
        takes: list[str] = []
        is_taking = asyncio.Event()
        take_once = self.queue.take_once

        async def counted(count: int, **options: Any) -> list[Reservation[Any]]:
            takes.append(options["consumer"])
            is_taking.set()
            return await take_once(count, **options)

        worker = Worker(self.queue, lambda job: None)
        with mock.patch.object(self.queue, "take_once", counted):
            running = asyncio.ensure_future(worker.start().run())
            await is_taking.wait()
            await worker.stop()
            await running
            worker.start()
            self.assertEqual(asyncio.all_tasks(), {asyncio.current_task()})
        self.assertEqual(len(takes), 1)

    async def test_handlers_may_stop_their_worker_and_run_waits_for_their_jobs(self) -> None:
        await self.queue.insert_many([0, 1])
        both = asyncio.Event()
        started = 0

        async def handle(job: Reservation[Any]) -> None:
            nonlocal started
            started += 1
            if started == 2:
                both.set()
            await both.wait()
            await worker.stop(grace=3600)

        for limit in (None, 3600):
            worker = Worker(self.queue, handle, handler_timeout=limit)
            self.assertEqual(await worker.run(), Stopped(finished=2, returned=0))
            self.assertEqual((await self.queue.status()).total, 0)
            await self.queue.insert_many([0, 1])
            started = 0

    async def test_a_run_that_is_cancelled_stops_the_worker(self) -> None:
        await self.queue.insert("hang")
        started = asyncio.Event()
        stops: list[str] = []

        async def handle(job: Reservation[Any]) -> None:
            started.set()
            await asyncio.Event().wait()

        worker = Worker(self.queue, handle).on("stopped", lambda: stops.append("stopped"))
        running = asyncio.ensure_future(worker.run(grace=0))
        await started.wait()
        running.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await running
        self.assertEqual(stops, ["stopped"])
        self.assertEqual((await self.queue.status()).ready, 1)

    async def test_a_worker_that_is_stopped_without_a_grace_period_ends_its_request_on_the_server(self) -> None:
        async def handle(job: Reservation[Any]) -> None:
            raise AssertionError("there is none")

        worker = Worker(self.queue, handle).start()
        waiting = Request("GET", f"/q/{self.queue.name}/consumers")
        while (await self.client.send(waiting)).body == b"[]":
            pass
        cancelled: list[str] = []
        cancel = self.queue.cancel

        async def note(consumer: str, timeout: float) -> None:
            cancelled.append(consumer)
            await cancel(consumer, timeout)

        with mock.patch.object(self.queue, "cancel", note):
            self.assertEqual(await worker.stop(grace=0), Stopped(0, 0))
        self.assertEqual(len(cancelled), 1)
        self.assertEqual((await self.client.send(waiting)).body, b"[]")

    async def test_stop_returns_the_jobs_of_handlers_that_do_not_end(self) -> None:
        await self.queue.insert("hang")
        started = asyncio.Event()

        async def handle(job: Reservation[Any]) -> None:
            started.set()
            await asyncio.Event().wait()

        worker = Worker(self.queue, handle).start()
        await started.wait()
        self.assertEqual(await worker.stop(grace=0.1), Stopped(0, 1))
        job = await self.queue.reserve()
        assert job is not None
        self.assertEqual(job.tries, 1)
        await job.commit()

    async def test_a_later_stop_may_shorten_the_grace_period(self) -> None:
        for patience in (3600.0, float("inf")):
            await self.queue.insert("hang")
            started = asyncio.Event()

            async def handle(job: Reservation[Any]) -> None:
                started.set()
                await asyncio.Event().wait()

            worker = Worker(self.queue, handle).start()
            await started.wait()
            patient = asyncio.ensure_future(worker.stop(grace=patience))
            await worker._stopping.wait()
            self.assertEqual(await worker.stop(grace=0), Stopped(0, 1))
            self.assertEqual(await patient, Stopped(0, 1))
            job = await self.queue.pop()
            assert job is not None
            self.assertEqual(job.tries, 1)

    async def test_a_worker_survives_a_function_for_credentials_that_raises(self) -> None:
        await self.queue.insert("x")
        is_failing = False
        failed, done = asyncio.Semaphore(0), asyncio.Event()
        errors: list[QuaysideError] = []

        async def authorize() -> str:
            if is_failing:
                raise OSError("no token")
            return "Basic dGVzdDE6dGVzdDE="

        async def handle(job: Reservation[Any]) -> None:
            nonlocal is_failing
            is_failing = job.tries == 0

        def note(error: QuaysideError) -> None:
            errors.append(error)
            failed.release()

        async with Quayside(URL, auth=authorize) as client:
            worker = Worker(client.queue(self.queue.name), handle, concurrency=1, lease=0.5)
            worker.on("error", note).on("committed", lambda job, seconds: done.set())
            async with worker:
                for _ in range(2):
                    await failed.acquire()
                is_failing = False
                await done.wait()
        self.assertEqual({error.code for error in errors}, {"failed"})

    async def test_a_function_for_credentials_that_awaits_what_is_cancelled_fails_its_call_and_ends_no_worker(self) -> None:
        await self.queue.insert("x")
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        failures = 0
        done = asyncio.Event()
        errors: list[QuaysideError] = []

        async def authorize() -> str:
            nonlocal failures
            if failures > 0:
                failures -= 1
                await cancelled
            return "Basic dGVzdDE6dGVzdDE="

        async def handle(job: Reservation[Any]) -> None:
            pass

        async with Quayside(URL, auth=authorize) as client:
            queue = client.queue(self.queue.name)
            calls: list[Callable[[], Awaitable[Any]]] = [lambda: queue.insert("y"), queue.status]
            for call in calls:
                failures = 1
                with self.assertRaises(QuaysideError) as raised:
                    await call()
                self.assertEqual((raised.exception.code, raised.exception.outcome), ("failed", "nothing-changed"))
            failures = 1
            worker = Worker(queue, handle).on("error", errors.append)
            async with worker.on("committed", lambda job, seconds: done.set()):
                await done.wait()
        self.assertEqual([error.code for error in errors], ["failed"])
        self.assertEqual((await self.queue.status()).total, 0)

    async def test_a_worker_stops_if_its_client_is_closed(self) -> None:
        client = Quayside()
        stopped = asyncio.Event()

        async def handle(job: Reservation[Any]) -> None:
            pass

        worker = Worker(client.queue(self.queue.name), handle)
        worker.on("error", lambda error: None).on("stopped", stopped.set)
        await client.close()
        worker.start()
        await stopped.wait()
        stops = await asyncio.gather(worker.stop(), worker.stop())
        self.assertEqual(stops, [Stopped(0, 0), Stopped(0, 0)])

    async def test_a_worker_may_be_resumed_before_its_pause_has_ended(self) -> None:
        done = asyncio.Event()

        async def handle(job: Reservation[Any]) -> None:
            done.set()

        with mock.patch.object(self.queue, "cancel", wraps=self.queue.cancel) as cancel:
            async with Worker(self.queue, handle) as worker:
                while worker._take_ended.is_set():
                    await asyncio.sleep(0)
                pausing = asyncio.ensure_future(worker.pause())
                await asyncio.sleep(0)
                await worker.resume()
                await pausing
                await self.queue.insert("x")
                await done.wait()
        # Of the pause, and of the end; a few more if a cancel overtook its take.
        self.assertLess(cancel.call_count, 10)


class recorded:
    """The requests of all asyncio clients while a `with` block runs."""

    def __enter__(self) -> list[Request]:
        requests: list[Request] = []
        send = Transport.send

        async def record(self: Transport, request: Request, timeout: float) -> Response:
            requests.append(request)
            return await send(self, request, timeout)

        self._patch = mock.patch.object(Transport, "send", record)
        self._patch.start()
        return requests

    def __exit__(self, *_: object) -> None:
        self._patch.stop()

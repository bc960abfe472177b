"""The blocking client."""

from __future__ import annotations

import logging
import math
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, TypeVar, overload
from urllib.parse import quote

from . import protocol, responses
from .codec import Codec, DefaultCodec
from .errors import LeaseLostError, QuaysideError
from .models import (
    BrowsedElement,
    Content,
    Element,
    ElementId,
    FailedState,
    QueueStatus,
    RawResponse,
    Receipt,
    SelectorFailure,
    State,
)
from .protocol import REPLY_SECONDS, Action, Attempts, IdempotencyKey, Request, Response, Retry, Settlement
from .transport import Transport

T = TypeVar("T")
LOG = logging.getLogger("quayside")


class Quayside:
    """A client of one server, for any number of threads. Close it, or use it in a `with` statement.

    Missing arguments default to the variables QUAYSIDE_URL, and QUAYSIDE_TOKEN, or QUAYSIDE_USER and QUAYSIDE_PASSWORD.
    A URL may contain user and password, too. `auth` is a pair of user and password, an API token, or a function that
    returns the value of the Authorization header and is called for each request. `timeout` is the time limit of a call
    in seconds, including repetitions but not `wait`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        auth: tuple[str, str] | str | Callable[[], str | None] | None = None,
        retry: Retry = Retry(),
        timeout: float = REPLY_SECONDS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        server = protocol.server_of(url)
        if callable(auth):
            authorize = auth
        else:
            authorization = protocol.authorization_of(auth, url)
            authorize = lambda: authorization  # noqa: E731
        self._transport = Transport(server, authorize, tls)
        self._retry = retry
        self._timeout = timeout

    @overload
    def queue(self, name: str) -> Queue[Any]: ...

    @overload
    def queue(self, name: str, codec: Codec[T]) -> Queue[T]: ...

    def queue(self, name: str, codec: Codec[Any] | None = None) -> Queue[Any]:
        """Returns a queue by its name, `NAMESPACE/QUEUE`. Sends no request."""
        return Queue(self, name, codec if codec is not None else DefaultCodec())

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | str | None = None,
        content_type: str = "application/json",
        repeatable: bool | None = None,
        timeout: float | None = None,
    ) -> RawResponse:
        """Sends any request of the HTTP interface, with the client's credentials, repeats and errors.

        `path` begins with "/" and includes the query. `body` is JSON unless `content_type` says otherwise. `repeatable`
        is whether the request may be sent again after an unknown outcome; None: a GET may that takes no element.
        """
        self.check_open()
        request = protocol.raw_request(method, path, body, content_type, repeatable)
        return responses.raw_of(self.send(request, timeout))

    def close(self) -> None:
        """Waits for inserts and settlements of other threads, ends their other calls, and rejects all later ones."""
        self._transport.close()

    def check_open(self) -> None:
        self._transport.check_open()

    def during(self) -> AbstractContextManager[None]:
        """Wraps a call that `close` waits for."""
        return self._transport.during()

    def __enter__(self) -> Quayside:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, request: Request, timeout: float | None, retry: Retry | None = None) -> Response:
        """Sends a request, and repeats it after transient errors if that is safe."""
        allowed = request.wait + (self._timeout if timeout is None else timeout)
        deadline = time.monotonic() + allowed
        attempts = Attempts(self._retry if retry is None else retry, request, deadline)
        while True:
            try:
                response = self._transport.send(request, max(deadline - time.monotonic(), 0.001))
                error = responses.error_of(response)
                if error is None:
                    return replace(response, after_unknown=attempts.after_unknown)
            except QuaysideError as failure:
                error = failure
            time.sleep(attempts.delay_after(error, time.monotonic()))


class Queue(Generic[T]):
    """One queue. Times are in seconds."""

    def __init__(self, client: Quayside, name: str, codec: Codec[T]) -> None:
        self.name = name
        self._client = client
        self._codec = codec
        self._path = protocol.queue_path(name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def insert(
        self,
        data: T,
        *,
        delay: float | None = None,
        at: datetime | None = None,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
        groups: Sequence[str] | None = None,
        idempotency_key: IdempotencyKey = None,
        timeout: float | None = None,
    ) -> ElementId:
        """Inserts an element and returns its id. Repeated after an unknown outcome, which a key makes safe."""
        key = None if idempotency_key is False else idempotency_key
        line = protocol.insert_line(
            self._codec, data, delay=delay, at=at, ttl=ttl, headers=headers, groups=groups, key=key
        )
        try:
            return self._send_lines([line], idempotency_key, timeout)[0]
        except QuaysideError as error:
            raise responses.of_one(error)

    def insert_many(
        self,
        data: Iterable[T],
        *,
        delay: float | None = None,
        at: datetime | None = None,
        ttl: float | None = None,
        headers: Mapping[str, str] | None = None,
        groups: Sequence[str] | None = None,
        idempotency_key: IdempotencyKey = None,
        timeout: float | None = None,
    ) -> list[ElementId]:
        """Inserts all elements or none, and returns their ids. A key is extended to `key-0`, `key-1`, …."""
        items = protocol.items_of(data)
        keys = protocol.line_keys(idempotency_key, len(items))
        lines = [
            protocol.insert_line(
                self._codec, item, delay=delay, at=at, ttl=ttl, headers=headers, groups=groups, key=key
            )
            for item, key in zip(items, keys)
        ]
        return self._send_lines(lines, idempotency_key, timeout) if lines else []

    def pop(
        self,
        *,
        wait: float | None = 0.0,
        group: str | None = None,
        consumer: str | None = None,
        timeout: float | None = None,
    ) -> Element[T] | None:
        """Takes an element and finishes it immediately: at-most-once delivery. `wait=None` waits without a limit."""
        for record in self._take(1, wait, False, group, None, consumer, timeout):
            return Element(responses.content_of(record), self._codec)
        return None

    def reserve(
        self,
        *,
        wait: float | None = 0.0,
        group: str | None = None,
        consumer: str | None = None,
        lease: float | None = None,
        timeout: float | None = None,
    ) -> Reservation[T] | None:
        """Takes an element under a lease, by default that of the queue. `wait=None` waits without a limit."""
        for job in self.reserve_many(1, wait=wait, group=group, consumer=consumer, lease=lease, timeout=timeout):
            return job
        return None

    def reserve_many(
        self,
        count: int,
        *,
        wait: float | None = 0.0,
        group: str | None = None,
        consumer: str | None = None,
        lease: float | None = None,
        timeout: float | None = None,
    ) -> list[Reservation[T]]:
        """Takes up to `count` elements under leases: those that are ready when the first one is."""
        return [
            self._reservation(record, group)
            for record in self._take(count, wait, True, group, lease, consumer, timeout)
        ]

    def elements(
        self,
        *,
        wait: float | None = None,
        group: str | None = None,
        consumer: str | None = None,
        lease: float | None = None,
    ) -> Iterator[Reservation[T]]:
        """Reserves one element after the other until none arrives for `wait` seconds; by default without end."""
        while (job := self.reserve(wait=wait, group=group, consumer=consumer, lease=lease)) is not None:
            yield job

    def browse(
        self,
        *,
        state: State | None = None,
        where: str | None = None,
        group: str | None = None,
        on_selector_error: Callable[[SelectorFailure], object] | None = None,
        timeout: float | None = None,
    ) -> Iterator[BrowsedElement[T]]:
        """Returns elements in delivery order without taking them.

        `on_selector_error` is called for each page that lacks elements because `where` raised.
        """
        after: str | None = None
        while True:
            request = protocol.browse_request(self._path, state=state, where=where, group=group, after=after)
            page = responses.document(self._client.send(request, timeout), "elements")
            failure = responses.selector_failure(page)
            if failure is not None and on_selector_error is not None:
                on_selector_error(failure)
            for record in page["elements"]:
                yield BrowsedElement(responses.content_of(record), self._codec, responses.look_of(record))
            after = page["next"]
            if after is None:
                return

    def status(self, *, timeout: float | None = None) -> QueueStatus:
        response = self._client.send(Request("GET", f"{self._path}/status"), timeout)
        return responses.status_of(responses.document(response, "stats"))

    def pause(self, *, timeout: float | None = None) -> None:
        """Makes all consumers of the queue wait until `resume`."""
        self._client.send(Request("PATCH", f"{self._path}/pause"), timeout)

    def resume(self, *, timeout: float | None = None) -> None:
        self._client.send(Request("PATCH", f"{self._path}/resume"), timeout)

    def settle(
        self, settlements: Sequence[Settlement], timeout: float | None
    ) -> list[datetime | FailedState | QuaysideError]:
        """Settles reservations of this queue in one request, or in several if the server rejects it as too large.

        Results are independent of each other.
        """
        try:
            with self._client.during():
                response = self._client.send(protocol.settle_request(self._path, settlements), timeout)
        except QuaysideError as error:
            if len(settlements) < 2 or not responses.is_of_many(error):
                raise
            half = len(settlements) // 2
            results = self.settle(settlements[:half], timeout)
            try:
                return [*results, *self.settle(settlements[half:], timeout)]
            except QuaysideError as failure:
                return [*results, *[failure] * (len(settlements) - half)]
        return responses.settle_results(settlements, response)

    def _send_lines(self, lines: Sequence[bytes], key: IdempotencyKey, timeout: float | None) -> list[ElementId]:
        kind = protocol.key_kind(key)
        request = protocol.insert_request(self._path, lines, kind, protocol.request_key(kind))
        self._client.check_open()
        with self._client.during():
            return responses.ids_of(self._client.send(request, timeout), kind)

    def _reservation(self, record: Mapping[str, Any], group: str | None) -> Reservation[T]:
        receipt = Receipt(record["id"], record["lease"], group)
        return Reservation(
            responses.content_of(record), self._codec, self, receipt, responses.moment(record["leaseUntil"])
        )

    def take_once(
        self, count: int, *, wait: float, group: str | None, lease: float, consumer: str
    ) -> list[Reservation[T]]:
        """Takes jobs with one request, which is not repeated: the worker decides when to try again."""
        self._client.check_open()
        request = protocol.take_request(
            self._path, count=count, wait=wait, reserve=True, group=group, lease=lease, consumer=consumer
        )
        response = self._client.send(request, None, Retry(attempts=1))
        jobs = [self._reservation(record, group) for record in responses.taken(response)]
        for job in jobs:
            job.lease_ends_at = response.received_at + lease
        return jobs

    def cancel(self, consumer: str, timeout: float) -> None:
        """Cancels the waiting calls of a consumer, which raise the error `pop-cancelled`."""
        request = Request("DELETE", f"{self._path}/consumer/{quote(consumer, safe='')}")
        self._client.send(request, timeout, Retry(attempts=1))

    def _take(
        self,
        count: int,
        wait: float | None,
        reserve: bool,
        group: str | None,
        lease: float | None,
        consumer: str | None,
        timeout: float | None,
    ) -> list[dict[str, Any]]:
        """Takes elements. A long wait is split into several requests."""
        if wait is not None:
            protocol.milliseconds("wait", wait)
        until = None if wait is None else time.monotonic() + wait
        while True:
            self._client.check_open()
            remaining = protocol.POLL_SECONDS if until is None else max(until - time.monotonic(), 0.0)
            request = protocol.take_request(
                self._path,
                count=count,
                wait=min(remaining, protocol.POLL_SECONDS),
                reserve=reserve,
                group=group,
                lease=lease,
                consumer=consumer,
            )
            records = responses.taken(self._client.send(request, timeout))
            if records or (until is not None and time.monotonic() >= until):
                return records


class Reservation(Element[T]):
    """An element under a lease. A `with` statement commits it at the end, or rolls it back if the block raises."""

    def __init__(
        self, content: Content, codec: Codec[T], queue: Queue[T], receipt: Receipt, lease_until: datetime
    ) -> None:
        super().__init__(content, codec)
        self._queue = queue
        self.receipt = receipt
        #: The end of the lease, by the server's clock.
        self.lease_until = lease_until
        #: Set when a worker notices that the lease is lost, or gives the job up. Long handlers should check it.
        self.lost = threading.Event()
        #: Whether the element is settled, or a settlement is in flight.
        self.settled = False
        #: When the lease ends, by the monotonic clock; unknown outside of a worker.
        self.lease_ends_at = math.inf
        #: Action of a settlement with an unknown outcome, after which a repeated one may find it applied.
        self._unknown: Action | None = None

    def commit(self, *, timeout: float | None = None) -> None:
        """Finishes the element."""
        self._settle(Settlement("commit", self.receipt), timeout)

    def rollback(
        self, *, delay: float | None = None, reason: str | None = None, timeout: float | None = None
    ) -> FailedState:
        """Returns the element after a failed try, or dead-letters it if that was the last one.

        `delay` defaults to the retry delay of the queue.
        """
        return self._settle(Settlement("rollback", self.receipt, delay=delay, reason=reason), timeout)

    def release(self, *, timeout: float | None = None) -> None:
        """Returns the element unprocessed to its place in the queue, without counting a try."""
        self._settle(Settlement("release", self.receipt), timeout)

    def bury(self, reason: str, *, timeout: float | None = None) -> FailedState:
        """Moves the element to the dead-letter queue. If the queue has none, the element is rolled back."""
        return self._settle(Settlement("bury", self.receipt, reason=reason), timeout)

    def extend(self, lease: float | None = None, *, timeout: float | None = None) -> datetime:
        """Renews the lease for `lease` seconds, by default the queue's lease, and returns its new end."""
        if self.settled:
            raise responses.already_settled(self.id)
        now = time.monotonic()
        try:
            until = self._apply(Settlement("extend", self.receipt, lease=lease), timeout)
        except LeaseLostError:
            # A concurrent settlement may have been first: then the reservation is settled, not lost.
            if self.settled:
                raise responses.already_settled(self.id) from None
            raise
        if isinstance(until, datetime):
            # Only the server knows the length of the queue's lease.
            added = (until - self.lease_until).total_seconds()
            self.lease_ends_at = self.lease_ends_at + added if lease is None else now + lease
            self.lease_until = until
        return self.lease_until

    def fail(self, error: BaseException, delay: float | None = None) -> FailedState:
        """Settles the element after an exception: RetryLater and Bury decide how, others roll back."""
        return self._settle(protocol.settlement_of(self.receipt, error, delay), None)

    def __enter__(self) -> Reservation[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.settled:
            return
        if error is None:
            self.commit()
            return
        try:
            self.fail(error)
        except Exception as failure:
            # The block's exception takes precedence. The element returns to the queue when its lease ends.
            LOG.warning("Element %s was not rolled back: %s", self.id, failure)

    def _settle(self, settlement: Settlement, timeout: float | None) -> FailedState:
        """Returns where the element is, if the settlement is a rollback or a burial."""
        if self.settled:
            raise responses.already_settled(self.id)
        self.settled = True
        settlement = replace(settlement, is_repeat=settlement.action == self._unknown)
        try:
            result = self._apply(settlement, timeout)
        except LeaseLostError:
            raise
        except BaseException as error:
            # The caller may try the same or another settlement, also after an error of `auth`, or an interrupt.
            self.settled = False
            if responses.may_be_done(error):
                self._unknown = settlement.action
            raise
        return "unknown" if isinstance(result, datetime) else result

    def _apply(self, settlement: Settlement, timeout: float | None) -> datetime | FailedState:
        (result,) = self._queue.settle([settlement], timeout)
        if isinstance(result, QuaysideError):
            raise result
        return result

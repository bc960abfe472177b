"""Both clients against a server that answers in ways that the real one does not: proxies, broken connections."""

from __future__ import annotations

import asyncio
import socket
import threading
import unittest
from collections.abc import Callable
from typing import Any

import quayside.aio
from quayside import ConnectionError, Quayside, QuaysideError, Retry
from quayside.transport import is_readable

IDS = b'{"ids": ["1"]}'
GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>"
PAGE = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>"
TAKEN = (
    b'{"id": "1", "tries": 0, "mature": "2026-01-01T00:00:00.000Z", "contentType": "text/plain", "headers": {}, '
    b'"text": "body", "lease": "token", "leaseUntil": "2026-01-01T00:01:00.000Z"}\n'
)


def answer(body: bytes, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNKED += b"5\r\n%b\r\n9;x=y\r\n%b\r\n0\r\n\r\n" % (IDS[:5], IDS[5:])
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + IDS
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + answer(IDS)
RETRY = Retry(attempts=3, min=0.001)


class CannedServer:
    """Answers the n-th request with the n-th response: bytes, or None to close the connection without one.

    With `closes`, each connection is closed after one response, which does not say so.
    """

    def __init__(self, *answers: bytes | None, closes: bool = False) -> None:
        self.requests: list[bytes] = []
        self._answers = list(answers)
        self._closes = closes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def __enter__(self) -> CannedServer:
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone does not end `accept` in another thread.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                break
            with connection:
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as reader:
            while (request := self._read(reader)) is not None:
                self.requests.append(request)
                response = self._answers.pop(0)
                if response is None:
                    return
                connection.sendall(response)
                if self._closes or b"connection: close" in response:
                    return

    def _read(self, reader: Any) -> bytes | None:
        head = b""
        key = b""
        length = 0
        while (line := reader.readline()) != b"\r\n":
            if line == b"":
                return None
            head += line
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
            if name.lower() == b"idempotency-key":
                key = line
        body: bytes = reader.read(length)
        return head.split(b"\r\n")[0] + b"\n" + key + body


Call = Callable[[Any], Any]
#: What a call returned or raised, and the requests that it sent.
Result = tuple[Any, list[bytes]]


def run_blocking(call: Call, *answers: bytes | None, closes: bool = False) -> Result:
    with CannedServer(*answers, closes=closes) as server, Quayside(server.url, retry=RETRY) as client:
        try:
            result = call(client.queue("N/q"))
        except QuaysideError as error:
            result = error
    return result, server.requests


def run_aio(call: Call, *answers: bytes | None, closes: bool = False) -> Result:
    async def run(url: str) -> Any:
        async with quayside.aio.Quayside(url, retry=RETRY) as client:
            try:
                return await call(client.queue("N/q"))
            except QuaysideError as error:
                return error

    with CannedServer(*answers, closes=closes) as server:
        result = asyncio.run(run(server.url))
    return result, server.requests


def run_both(call: Call, *answers: bytes | None) -> list[Result]:
    return [run_blocking(call, *answers), run_aio(call, *answers)]


class Transports(unittest.TestCase):
    def test_every_framing_of_a_response_is_read(self) -> None:
        for response in (answer(IDS), CHUNKED, UNTIL_CLOSE, INTERIM):
            for result, _ in run_both(lambda queue: queue.insert("a"), response):
                self.assertEqual(result, "1")

    def test_an_insert_with_a_key_is_repeated_as_it_was(self) -> None:
        for result, requests in run_both(lambda queue: queue.insert("a"), None, GATEWAY, answer(IDS)):
            self.assertEqual(result, "1")
            self.assertEqual((len(requests), len(set(requests))), (3, 1))
            self.assertRegex(requests[0], b"\nIdempotency-Key: [0-9a-f]{32}\r\n")
            self.assertNotIn(b'"key"', requests[0])

    def test_a_key_that_the_caller_names_is_that_of_the_element(self) -> None:
        for key, expected in (("own", b'"key": "own"'), (False, b'"text"')):
            call = lambda queue: queue.insert("a", idempotency_key=key)
            for _, requests in run_both(call, answer(IDS)):
                self.assertIn(expected, requests[0])
                self.assertNotIn(b"Idempotency-Key", requests[0])

    def test_what_must_not_happen_twice_is_not_repeated(self) -> None:
        calls: list[Call] = [lambda queue: queue.insert("a", idempotency_key=False), lambda queue: queue.pop()]
        for call in calls:
            for result, requests in run_both(call, None):
                self.assertIsInstance(result, ConnectionError)
                self.assertEqual((result.code, result.outcome), ("connection-failed", "unknown"))
                self.assertEqual(len(requests), 1)

    def test_a_reserve_is_repeated(self) -> None:
        for result, requests in run_both(lambda queue: queue.reserve(), None, answer(TAKEN)):
            self.assertEqual((result.data, result.receipt.token), ("body", "token"))
            self.assertEqual(len(requests), 2)

    def test_a_commit_whose_response_was_lost_is_done_if_the_element_is_gone(self) -> None:
        gone = answer(b'{"results": [{"id": "1", "action": "commit", "outcome": "not-found"}]}')

        async def commit(queue: Any) -> None:
            await (await queue.reserve()).commit()

        for result, requests in (
            run_blocking(lambda queue: queue.reserve().commit(), answer(TAKEN), None, gone),
            run_aio(commit, answer(TAKEN), None, gone),
        ):
            self.assertIsNone(result)
            self.assertEqual(len(requests), 3)

    def test_what_is_not_from_quayside_is_an_error(self) -> None:
        for result, _ in run_both(lambda queue: queue.insert("a"), GATEWAY, GATEWAY, GATEWAY):
            self.assertEqual((result.code, result.status, result.outcome), ("gateway-failed", 502, "unknown"))
        for result, _ in run_both(lambda queue: queue.insert("a"), PAGE):
            self.assertEqual((result.code, result.outcome), ("unexpected-response", "unknown"))
            self.assertIn("<html>", str(result))
        for result, _ in run_both(lambda queue: queue.pop(), b"220 mail.example.org ESMTP\r\n\r\n"):
            self.assertEqual(result.code, "connection-failed")

    def test_a_connection_that_the_server_closed_is_not_used_again(self) -> None:
        def pop_twice(queue: Any) -> Any:
            first = queue.pop()
            (connection,) = queue._client._transport._idle
            # Until the end of the connection has arrived.
            while not is_readable(connection):
                pass
            return [first, queue.pop()]

        async def pop_twice_aio(queue: Any) -> Any:
            first = await queue.pop()
            ((reader, _),) = queue._client._transport._idle
            while not reader.at_eof():
                await asyncio.sleep(0)
            return [first, await queue.pop()]

        nothing = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
        for result, requests in (
            run_blocking(pop_twice, nothing, nothing, closes=True),
            run_aio(pop_twice_aio, nothing, nothing, closes=True),
        ):
            self.assertEqual(result, [None, None])
            self.assertEqual(len(requests), 2)

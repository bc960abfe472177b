"""Both clients against a server that answers in ways that the real one does not: proxies, broken connections."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import quayside.aio
from quayside import (
    ConnectionError,
    LeaseLostError,
    Quayside,
    QuaysideError,
    Queue,
    Retry,
    StoppedError,
    TimeoutError,
    ValidationError,
)
from quayside.models import Receipt
from quayside.protocol import Settlement, authorization_of
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


def problem(status: str, members: dict[str, str]) -> bytes:
    body = json.dumps(members).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNKED += b"5\r\n%b\r\n9;x=y\r\n%b\r\n0\r\n\r\n" % (IDS[:5], IDS[5:])
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + IDS
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + answer(IDS)
RETRY = Retry(attempts=3, min=0.001)


class CannedServer:
    """Answers the n-th request with the n-th response: bytes, or None to close the connection without one.

    With `closes`, each connection is closed after one response, which does not say so. With `drips`, more bytes follow, one by one,
    until the client hangs up.
    """

    def __init__(self, *answers: bytes | None, closes: bool = False, drips: bool = False) -> None:
        self._drips = drips
        self._connection: socket.socket | None = None
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

    def say(self, unasked: bytes) -> None:
        """Sends what no request asked for, and closes its side."""
        assert self._connection is not None
        self._connection.sendall(unasked)
        self._connection.shutdown(socket.SHUT_WR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                break
            with connection, contextlib.suppress(ConnectionResetError):
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        self._connection = connection
        with connection.makefile("rb") as reader:
            while (request := self._read(reader)) is not None:
                self.requests.append(request)
                response = self._answers.pop(0)
                if response is None:
                    return
                connection.sendall(response)
                while self._drips:
                    try:
                        connection.sendall(b"x")
                    except OSError:
                        return
                    time.sleep(0.05)
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


class PortServer(http.server.ThreadingHTTPServer):
    """Answers an insert with the client's port as the id: one for each connection."""

    #: What the requests of several connections wait for.
    together: threading.Barrier | None = None

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), PortHandler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.sockets: dict[int, socket.socket] = {}
        self._thread = threading.Thread(target=self.serve_forever, args=[0.01])
        self._thread.start()

    def hang_up(self, port: int) -> None:
        self.sockets[port].shutdown(socket.SHUT_RDWR)

    def __exit__(self, *_: object) -> None:
        for port in self.sockets:
            with contextlib.suppress(OSError):
                self.hang_up(port)
        self.shutdown()
        self._thread.join()
        self.server_close()


class PortHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert isinstance(self.server, PortServer)
        self.rfile.read(int(self.headers["content-length"]))
        port = self.client_address[1]
        self.server.sockets[port] = self.connection
        if self.server.together is not None:
            self.server.together.wait()
        body = json.dumps({"ids": [str(port)]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


Call = Callable[[Any], Any]
#: What a call returned or raised, and the requests that it sent.
Result = tuple[Any, list[bytes]]


class TlsServer:
    """Accepts connections with a self-signed certificate for localhost, or answers them without TLS.

    With `reads_requests`, it reads a request before it answers without TLS.
    """

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.certificate = os.path.join(self.folder.name, "cert.pem")
        key = os.path.join(self.folder.name, "key.pem")
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        self.reads_requests = False
        command = ["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-keyout", key, "-out", self.certificate]
        subprocess.run([*command, *names], check=True, capture_output=True)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(self.certificate, key)
        self.has_tls = True
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> TlsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self.folder.cleanup()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                with connection, contextlib.suppress(OSError):
                    if self.reads_requests:
                        with connection.dup() as bare, self._tls.wrap_socket(connection, server_side=True) as tls:
                            tls.recv(65_536)
                            bare.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
                    elif self.has_tls:
                        self._tls.wrap_socket(connection, server_side=True).close()
                    else:
                        connection.recv(65_536)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")


def insert_together(server: PortServer, queue: Queue[Any], count: int) -> None:
    """Inserts so many elements at once, each over a connection of its own."""
    server.together = threading.Barrier(count)
    threads = [threading.Thread(target=queue.insert, args=["a"]) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.together = None


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


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

    def test_a_commit_that_is_called_again_after_an_unknown_outcome_is_done_if_the_element_is_gone(self) -> None:
        gone = answer(b'{"results": [{"id": "1", "outcome": "not-found"}]}')

        def commit(queue: Any, again: str) -> None:
            job = queue.reserve()
            with self.assertRaises(ConnectionError):
                job.commit()
            getattr(job, again)()

        async def commit_aio(queue: Any, again: str) -> None:
            job = await queue.reserve()
            with self.assertRaises(ConnectionError):
                await job.commit()
            await getattr(job, again)()

        cases: list[tuple[str, type]] = [("commit", type(None)), ("rollback", LeaseLostError)]
        for again, expected in cases:
            for result, requests in (
                run_blocking(lambda queue: commit(queue, again), answer(TAKEN), None, None, None, gone),
                run_aio(lambda queue: commit_aio(queue, again), answer(TAKEN), None, None, None, gone),
            ):
                self.assertIsInstance(result, expected)
                self.assertEqual(len(requests), 5)

    def test_a_commit_whose_first_call_was_never_sent_is_not_done_if_the_element_is_gone(self) -> None:
        gone = answer(b'{"results": [{"id": "1", "outcome": "not-found"}]}')

        asked = 0

        class NoCredentials(Exception):
            pass

        def auth() -> str:
            nonlocal asked
            asked += 1
            if asked == 2:
                raise NoCredentials
            return "Bearer x"

        async def auth_aio() -> str:
            return auth()

        async def commit_aio(url: str) -> None:
            async with quayside.aio.Quayside(url, auth=auth_aio, retry=RETRY) as client:
                job: Any = await client.queue("N/q").reserve()
                with self.assertRaises(NoCredentials):
                    await job.commit()
                with self.assertRaises(LeaseLostError):
                    await job.commit()

        with CannedServer(answer(TAKEN), gone) as server, Quayside(server.url, auth=auth, retry=RETRY) as client:
            job: Any = client.queue("N/q").reserve()
            with self.assertRaises(NoCredentials):
                job.commit()
            with self.assertRaises(LeaseLostError):
                job.commit()
        asked = 0
        with CannedServer(answer(TAKEN), gone) as server:
            asyncio.run(commit_aio(server.url))

    def test_close_waits_for_an_insert_of_another_thread_and_rejects_later_calls(self) -> None:
        class NotNow(Exception):
            pass

        def auth() -> str:
            if threading.current_thread() is threading.main_thread():
                raise NotNow
            begun.set()
            may_continue.wait()
            return "Bearer x"

        begun, may_continue = threading.Event(), threading.Event()
        ids: list[str] = []
        with CannedServer(answer(IDS)) as server:
            client = Quayside(server.url, auth=auth, retry=RETRY)
            queue = client.queue("N/q")
            inserting = threading.Thread(target=lambda: ids.append(queue.insert("a")))
            inserting.start()
            begun.wait()
            closing = threading.Thread(target=client.close)
            closing.start()
            while True:
                try:
                    queue.insert("b")
                except NotNow:
                    continue
                except StoppedError:
                    break
            may_continue.set()
            closing.join()
            self.assertEqual(ids, ["1"])
            inserting.join()

    def test_close_ends_a_call_of_another_thread_that_waits_for_an_element(self) -> None:
        errors: list[QuaysideError] = []

        def take() -> None:
            try:
                client.queue("N/q").reserve(wait=None)
            except QuaysideError as error:
                errors.append(error)

        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = Quayside(url_of(listener))
            taking = threading.Thread(target=take)
            taking.start()
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)
                client.close()
                taking.join()
        self.assertEqual([(type(error), error.outcome) for error in errors], [(StoppedError, "unknown")])

    def test_close_of_asyncio_ends_a_call_that_waits_for_an_element(self) -> None:
        async def run(listener: socket.socket) -> None:
            listener.setblocking(False)
            loop = asyncio.get_running_loop()
            client = quayside.aio.Quayside(url_of(listener))
            taking = asyncio.ensure_future(client.queue("N/q").reserve(wait=None))
            connection, _ = await loop.sock_accept(listener)
            with connection:
                await loop.sock_recv(connection, 1)
                await client.close()
                with self.assertRaises(StoppedError) as raised:
                    await taking
            self.assertEqual(raised.exception.outcome, "unknown")

        with socket.create_server(("127.0.0.1", 0)) as listener:
            asyncio.run(run(listener))

    def test_close_of_asyncio_waits_for_an_insert_that_was_not_sent_yet(self) -> None:
        async def run(url: str) -> str:
            client = quayside.aio.Quayside(url, retry=RETRY)
            inserting = asyncio.ensure_future(client.queue("N/q").insert("a"))
            await asyncio.sleep(0)
            await client.close()
            with self.assertRaises(StoppedError):
                await client.queue("N/q").insert("b")
            return await inserting

        with CannedServer(answer(IDS)) as server:
            self.assertEqual(asyncio.run(run(server.url)), "1")

    def test_the_timeout_of_an_insert_of_asyncio_covers_its_wait_for_other_requests(self) -> None:
        async def run(url: str) -> QuaysideError:
            queue = quayside.aio.Quayside(url, timeout=0.02).queue("N/q")
            stuck = []
            for _ in range(2):
                stuck.append(asyncio.ensure_future(queue.insert("a", timeout=60)))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            with self.assertRaises(TimeoutError) as raised:
                await queue.insert("b")
            for one in stuck:
                one.cancel()
            return raised.exception

        with socket.create_server(("127.0.0.1", 0)) as silent:
            error = asyncio.run(run(f"http://127.0.0.1:{silent.getsockname()[1]}"))
        self.assertEqual((error.code, error.outcome), ("timeout", "nothing-changed"))

    def test_an_insert_of_asyncio_may_take_longer_than_calls_of_its_client(self) -> None:
        async def run(url: str) -> str:
            async with quayside.aio.Quayside(url, timeout=0.0, retry=RETRY) as client:
                return await client.queue("N/q").insert("a", timeout=30)

        with CannedServer(None, answer(IDS)) as server:
            self.assertEqual(asyncio.run(run(server.url)), "1")

    def test_what_is_not_from_quayside_is_an_error(self) -> None:
        for result, _ in run_both(lambda queue: queue.insert("a"), GATEWAY, GATEWAY, GATEWAY):
            self.assertIsInstance(result, ConnectionError)
            self.assertEqual((result.code, result.status, result.outcome), ("connection-failed", 502, "unknown"))
        for response in (PAGE, answer(b'{"welcome": true}'), answer(b"[]")):
            for call in (lambda queue: queue.insert("a"), lambda queue: queue.status(), lambda queue: queue.pop()):
                for result, requests in run_both(call, response):
                    self.assertEqual((result.code, result.outcome), ("unexpected-response", "unknown"))
                    self.assertEqual(len(requests), 1)
                    self.assertIn("is not from Quayside", str(result))
        for status in ("413 Too Large", "301 Moved", "404 Not Found"):
            for result, requests in run_both(lambda queue: queue.insert("a"), answer(b"<html>", status)):
                self.assertEqual((result.code, result.outcome), ("unexpected-response", "nothing-changed"))
                self.assertNotIsInstance(result, ConnectionError)
                self.assertEqual(len(requests), 1)
        limited = b"HTTP/1.1 429 Too Many\r\nretry-after: 0\r\ncontent-length: 6\r\n\r\n<html>"
        for result, requests in run_both(lambda queue: queue.pop(), limited, limited, limited):
            self.assertEqual((result.code, result.outcome, result.retry_after), ("overloaded", "nothing-changed", 0))
            self.assertEqual(len(requests), 3)
        for result, _ in run_both(lambda queue: queue.pop(), b"220 mail.example.org ESMTP\r\n\r\n"):
            self.assertEqual(result.code, "connection-failed")

    def test_a_failure_of_tls_that_lasts_is_raised_at_once(self) -> None:
        async def insert(url: str, tls: ssl.SSLContext | None) -> None:
            async with quayside.aio.Quayside(url, tls=tls) as client:
                await client.queue("N/q").insert(1)

        with TlsServer() as server:
            trusting = ssl.create_default_context(cafile=server.certificate)
            for has_tls, tls, message in (
                (True, None, "self-signed certificate"),
                (True, trusting, "IP address mismatch"),
                (False, None, "WRONG_VERSION_NUMBER"),
            ):
                server.has_tls = has_tls
                server.connections = 0
                for count in (1, 2):
                    with self.assertRaisesRegex(ConnectionError, message) as raised:
                        if count == 1:
                            with Quayside(server.url, tls=tls) as client:
                                client.queue("N/q").insert(1)
                        else:
                            asyncio.run(insert(server.url, tls))
                    self.assertEqual((raised.exception.code, raised.exception.outcome), ("tls-failed", "nothing-changed"))
                    self.assertEqual(server.connections, count)

    def test_a_tls_connection_that_breaks_after_the_request_has_an_unknown_outcome(self) -> None:
        async def insert(url: str, tls: ssl.SSLContext) -> None:
            async with quayside.aio.Quayside(url, tls=tls, retry=Retry(attempts=1)) as client:
                await client.queue("N/q").insert(1)

        with TlsServer() as server:
            server.reads_requests = True
            trusting = ssl.create_default_context(cafile=server.certificate)
            trusting.check_hostname = False
            with self.assertRaises(ConnectionError) as raised:
                with Quayside(server.url, tls=trusting, retry=Retry(attempts=1)) as client:
                    client.queue("N/q").insert(1)
            self.assertEqual((raised.exception.code, raised.exception.outcome), ("connection-failed", "unknown"))
            with self.assertRaises(ConnectionError) as raised:
                asyncio.run(insert(server.url, trusting))
            self.assertEqual((raised.exception.code, raised.exception.outcome), ("connection-failed", "unknown"))

    def test_an_error_is_of_unknown_outcome_if_an_earlier_attempt_was(self) -> None:
        unavailable = problem("503 Unavailable", {"code": "storage-unavailable"})
        for result, requests in run_both(lambda queue: queue.insert("a"), None, unavailable, unavailable):
            self.assertEqual((result.code, result.outcome), ("storage-unavailable", "unknown"))
            self.assertEqual(len(requests), 3)
        for result, _ in run_both(lambda queue: queue.insert("a"), *[unavailable] * 3):
            self.assertEqual((result.code, result.outcome), ("storage-unavailable", "nothing-changed"))

    def test_the_problem_of_a_gateway_has_no_code_and_is_that_of_a_gateway(self) -> None:
        gateway = problem("504 Gateway Timeout", {"title": "Gateway Timeout"})
        for result, requests in run_both(lambda queue: queue.insert("a"), gateway, gateway, answer(IDS)):
            self.assertEqual((result, len(requests)), ("1", 3))

    def test_a_request_that_did_not_arrive_in_time_is_repeated(self) -> None:
        for late in (problem("408 Timeout", {"code": "request-timeout"}), answer(b"<html>", "408 Timeout")):
            for result, requests in run_both(lambda queue: queue.pop(), late, answer(TAKEN)):
                self.assertEqual((result.data, len(requests)), ("body", 2))

    def test_a_child_of_a_fork_uses_no_connection_of_its_parent(self) -> None:
        with PortServer() as server, Quayside(server.url) as client:
            queue = client.queue("N/q")
            used = queue.insert("a")
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    os.write(writer, queue.insert("b").encode())
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            of_child = os.read(reader, 100).decode()
            os.close(reader)
            os.close(writer)
            self.assertTrue(of_child.isdecimal())
            self.assertNotEqual(of_child, used)
            self.assertEqual(queue.insert("c"), used)

    def test_connections_that_the_server_closed_are_closed_although_others_are_in_use(self) -> None:
        with PortServer() as server, Quayside(server.url) as client:
            queue = client.queue("N/q")
            insert_together(server, queue, 4)
            idle = client._transport._idle
            stale = idle[:3]
            for connection in stale:
                server.hang_up(connection.sock.getsockname()[1])
            while not all(is_readable(connection) for connection in stale):
                pass
            for _ in range(3):
                queue.insert("a")
            self.assertEqual([connection.sock for connection in stale], [None] * 3)
            self.assertEqual(len(idle), 1)

    def test_so_are_those_of_asyncio(self) -> None:
        async def run(server: PortServer) -> None:
            async with quayside.aio.Quayside(server.url) as client:
                # Inserts into one queue would share requests.
                queues = [client.queue(f"N/{number}") for number in range(4)]
                idle = client._transport._idle
                server.together = threading.Barrier(len(queues))
                await asyncio.gather(*(queue.insert("a") for queue in queues))
                server.together = None
                stale = idle[:3]
                for _, writer in stale:
                    server.hang_up(writer.get_extra_info("sockname")[1])
                while not all(reader.at_eof() for reader, _ in stale):
                    await asyncio.sleep(0)
                for _ in range(3):
                    await queues[0].insert("a")
                self.assertTrue(all(writer.is_closing() for _, writer in stale))
                self.assertEqual(len(idle), 1)

        with PortServer() as server:
            asyncio.run(run(server))

    def test_settlements_and_inserts_that_are_too_many_at_once_are_sent_in_several_requests(self) -> None:
        settlements = [Settlement("commit", Receipt(str(number), "token", None)) for number in range(3)]

        def results(count: int) -> bytes:
            return answer(json.dumps({"results": [{"outcome": "done"}] * count}).encode())

        large = problem("413 Payload Too Large", {"code": "body-too-large", "line": 3})  # type: ignore[dict-item]
        lost = problem("503 Service Unavailable", {"code": "storage-unavailable"})
        def settle(queue: Any) -> Any:
            return queue.settle(settlements, None)

        for result, requests in run_both(settle, large, results(1), results(2)):
            self.assertEqual((result, len(requests)), (["waiting"] * 3, 3))
        for result, _ in run_both(settle, large, results(1), lost, lost, lost):
            codes = [getattr(one, "code", None) for one in result]
            self.assertEqual(codes, [None, "storage-unavailable", "storage-unavailable"])

        async def insert_three(url: str) -> Any:
            async with quayside.aio.Quayside(url, retry=RETRY) as client:
                queue = client.queue("N/q")
                return await asyncio.gather(*(queue.insert(number) for number in range(3)))

        with CannedServer(large, answer(IDS), large, answer(b'{"ids": ["2"]}'), answer(b'{"ids": ["3"]}')) as server:
            self.assertEqual(asyncio.run(insert_three(server.url)), ["1", "2", "3"])

    def test_a_client_may_be_closed_by_a_signal_at_any_moment_of_a_call(self) -> None:
        with PortServer() as server:
            for moment in range(2):
                client = Quayside(server.url)
                queue = client.queue("N/q")
                insert_together(server, queue, 2)
                checks = 0

                def check(connection: Any) -> bool:
                    nonlocal checks
                    # Of the connection that is used, and of one that stays idle, when the first one is back.
                    if checks == moment:
                        signal.raise_signal(signal.SIGUSR1)
                    checks += 1
                    return is_readable(connection)

                before = signal.signal(signal.SIGUSR1, lambda *_: client.close())
                self.addCleanup(signal.signal, signal.SIGUSR1, before)
                with patch("quayside.transport.is_readable", check):
                    self.assertTrue(queue.insert("b").isdecimal())
                self.assertEqual([connection.sock for connection in client._transport._idle], [])
                with self.assertRaises(StoppedError):
                    queue.insert("c")

    def test_a_call_may_have_no_end(self) -> None:
        for result, _ in run_both(lambda queue: queue.pop(timeout=float("inf")), answer(TAKEN)):
            self.assertEqual(result.data, "body")

    def test_a_response_that_was_cut_off_anywhere_is_not_taken_for_an_empty_queue(self) -> None:
        whole = answer(TAKEN)
        for length in (1, whole.index(b"\r\n") + 2, whole.index(b"length"), whole.index(b"{"), len(whole) - 1):
            cut = whole[:length]
            for result, requests in (
                run_blocking(lambda queue: queue.pop(), cut, closes=True),
                run_aio(lambda queue: queue.pop(), cut, closes=True),
            ):
                self.assertIsInstance(result, ConnectionError, cut)
                self.assertEqual((result.code, result.outcome, len(requests)), ("connection-failed", "unknown", 1))
        # Without a length, the end of the connection may be the end of the response.
        for result, _ in run_both(lambda queue: queue.pop(), b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"):
            self.assertEqual((result.code, result.outcome), ("unexpected-response", "unknown"))

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

        nothing = b"HTTP/1.1 504 Queue Pop Timeout\r\ncontent-type: application/problem+json\r\ncontent-length: 22\r\n\r\n"
        nothing += b'{"code":"pop-timeout"}'
        for result, requests in (
            run_blocking(pop_twice, nothing, nothing, closes=True),
            run_aio(pop_twice_aio, nothing, nothing, closes=True),
        ):
            self.assertEqual(result, [None, None])
            self.assertEqual(len(requests), 2)

    def test_what_arrives_while_nobody_waits_answers_no_later_request(self) -> None:
        late = answer(b"<html>", "408 Request Timeout")

        def insert_twice(server: CannedServer, queue: Any) -> Any:
            first = queue.insert("a")
            server.say(late)
            (connection,) = queue._client._transport._idle
            while not is_readable(connection):
                pass
            return [first, queue.insert("b")]

        async def insert_twice_aio(server: CannedServer, queue: Any) -> Any:
            first = await queue.insert("a")
            ((reader, writer),) = queue._client._transport._idle
            read = select.epoll()
            read.register(writer.get_extra_info("socket").fileno(), select.EPOLLIN)
            server.say(late)
            # Until it has arrived, and until the event loop has read it.
            read.poll()
            read.close()
            for _ in range(3):
                await asyncio.sleep(0)
            return [first, await queue.insert("b")]

        with CannedServer(answer(IDS), answer(IDS)) as server, Quayside(server.url, retry=RETRY) as client:
            self.assertEqual(insert_twice(server, client.queue("N/q")), ["1", "1"])

        async def run(server: CannedServer) -> Any:
            async with quayside.aio.Quayside(server.url, retry=RETRY) as client:
                return await insert_twice_aio(server, client.queue("N/q"))

        with CannedServer(answer(IDS), answer(IDS)) as server:
            self.assertEqual(asyncio.run(run(server)), ["1", "1"])

    def test_a_response_that_arrives_too_slowly_ends_with_the_timeout_of_its_call(self) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n"
        for start in (b"", head):
            with CannedServer(start, drips=True) as server, Quayside(server.url, timeout=0.5) as client:
                with self.assertRaises(TimeoutError) as raised:
                    client.queue("N/q").insert("a")
                self.assertEqual(raised.exception.outcome, "unknown")

    def test_what_the_function_for_credentials_raises_is_raised_as_it_is_and_nothing_is_sent(self) -> None:
        def fails() -> str:
            raise OSError("no token")

        async def fails_too() -> str:
            return fails()

        async def status(url: str) -> None:
            async with quayside.aio.Quayside(url, auth=fails_too) as client:
                await client.queue("N/q").status()

        with CannedServer() as server:
            with Quayside(server.url, auth=fails) as client, self.assertRaisesRegex(OSError, "^no token$"):
                client.queue("N/q").status()
            with self.assertRaisesRegex(OSError, "^no token$"):
                asyncio.run(status(server.url))
            self.assertEqual(server.requests, [])

    def test_a_token_with_a_line_break_is_trimmed_and_a_header_with_one_is_not_sent(self) -> None:
        async def status(url: str, auth: Any) -> Any:
            async with quayside.aio.Quayside(url, auth=auth) as client:
                try:
                    return await client.queue("N/q").status()
                except QuaysideError as error:
                    return error

        async def split() -> str:
            return "Bearer x\r\nx: y"

        async def dots() -> str:
            return "Bearer …"

        self.assertEqual(authorization_of("qs_token\n"), "Bearer qs_token")
        with CannedServer() as server:
            with Quayside(server.url, auth=lambda: "Bearer x\r\nx: y") as client, self.assertRaises(ValidationError):
                client.queue("N/q").status()
            for auth in (split, dots):
                self.assertIsInstance(asyncio.run(status(server.url, auth)), ValidationError)
            for token in ("…", "secret\0"):
                with Quayside(server.url, auth=token) as client, self.assertRaises(ValidationError) as raised:
                    client.queue("N/q").status()
                self.assertNotIn("secret", str(raised.exception))
            self.assertEqual(server.requests, [])

    def test_a_body_that_the_user_may_not_see_is_not_taken_for_an_empty_one(self) -> None:
        record: dict[str, object] = {
            "id": "1",
            "state": "ready",
            "mature": "2026-01-01T00:00:00.000Z",
            "insertedAt": "2026-01-01T00:00:00.000Z",
            "expiresAt": None,
            "tries": 0,
            "reason": None,
            "contentType": "application/json",
            "headers": {},
            "holder": None,
        }
        page = answer(json.dumps({"elements": [record], "next": None, "failed": 0, "error": None}).encode())

        async def browse(queue: Any) -> Any:
            return [element async for element in queue.browse()]

        for result, _ in (run_blocking(lambda queue: list(queue.browse()), page), run_aio(browse, page)):
            (element,) = result
            with self.assertRaises(QuaysideError) as raised:
                _ = element.data
            self.assertEqual(raised.exception.code, "body-hidden")

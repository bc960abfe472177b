"""HTTP/1.1 over asyncio's streams. The standard library has no HTTP client for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from ..errors import Outcome, QuaysideError, TimeoutError
from ..protocol import Request, Response, Server, head_of
from ..transport import closed_error, connection_error


class Reader(asyncio.StreamReader):
    """Detects data on an idle connection, such as the 408 of a proxy, which must not be read as the next response.

    What arrived before the connection broke can still be read: the server rejects a too large body before all of it has
    arrived.
    """

    is_idle = False
    is_stale = False
    #: Why the connection broke.
    failure: Exception | None = None

    def set_exception(self, exc: Exception) -> None:
        self.failure = exc
        self.feed_eof()

    def feed_data(self, data: Any) -> None:
        self.is_stale = self.is_stale or self.is_idle
        super().feed_data(data)


Connection = tuple[Reader, asyncio.StreamWriter]

#: Maximum length of a line in the head of a response.
MAX_LINE_BYTES = 65_536


def shielded(authorize: Callable[[], Awaitable[str | None] | str | None]) -> Callable[[], Awaitable[str | None]]:
    """Wraps a function for credentials: its cancellation, such as that of a shared refresh, cancels no call."""

    async def call() -> str | None:
        given = authorize()
        if given is None or isinstance(given, str):
            return given
        task = asyncio.ensure_future(given)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        if task.cancelled():
            raise QuaysideError("failed", "The function for credentials was cancelled.")
        return task.result()

    return call


class ProtocolError(Exception):
    """The response is not HTTP/1.1."""


class Transport:
    """Idle connections to one server. Belongs to one event loop."""

    def __init__(
        self, server: Server, authorize: Callable[[], Awaitable[str | None]], tls: ssl.SSLContext | None
    ) -> None:
        self._server = server
        self._authorize = authorize
        self._tls: ssl.SSLContext | None = None
        if server.scheme == "https":
            self._tls = tls if tls is not None else ssl.create_default_context()
        self._idle: list[Connection] = []
        #: The connections of calls.
        self._busy: set[Connection] = set()
        self._is_closed = False
        self._is_closing = False
        #: How many calls `close` waits for.
        self._calls = 0
        self._calls_ended = asyncio.Event()
        self._calls_ended.set()

    def check_open(self) -> None:
        """Raises if the client is closed, or is being closed."""
        if self._is_closing:
            raise closed_error()

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        """Wraps a call that `close` waits for."""
        self._calls += 1
        self._calls_ended.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if self._calls == 0:
                self._calls_ended.set()

    async def send(self, request: Request, timeout: float) -> Response:
        """Sends a request once. Errors of the function for credentials are raised unchanged."""
        is_sent = False

        async def exchange() -> Response:
            nonlocal is_sent
            headers = head_of(self._server, request, await self._authorize())
            try:
                connection = await self._connect()
                is_sent = True
                self._busy.add(connection)
                try:
                    response, is_reusable = await converse(connection, self._server, request, headers)
                except EOFError as error:
                    abort(connection)
                    raise connection[0].failure or error
                except BaseException:
                    # Also if the call is cancelled: the server returns elements undelivered if the client disconnects.
                    abort(connection)
                    raise
                finally:
                    self._busy.discard(connection)
            except (OSError, EOFError, ValueError, ProtocolError, asyncio.LimitOverrunError) as error:
                if self._is_closed and is_sent:
                    # `close` has ended the connection.
                    raise closed_error("unknown") from error
                raise self._failure(error, is_sent) from error
            if is_reusable and not self._is_closed:
                self._release(connection)
            else:
                abort(connection)
            return response

        try:
            return await asyncio.wait_for(exchange(), timeout)
        except asyncio.TimeoutError as error:
            raise self._failure(error, is_sent) from error

    def _release(self, connection: Connection) -> None:
        # The last connection is reused first, so after a burst of calls the first ones stay until the server closes
        # them.
        if self._idle and not is_usable(self._idle[0]):
            abort(self._idle.pop(0))
        connection[0].is_idle = True
        self._idle.append(connection)

    def _failure(self, error: Exception, is_sent: bool) -> QuaysideError:
        what = "failed before the response was complete" if is_sent else "cannot be opened"
        message = f"The connection to {self._server.authority} {what}: {str(error) or type(error).__name__}"
        outcome: Outcome = "unknown" if is_sent else "nothing-changed"
        if isinstance(error, asyncio.TimeoutError):
            return TimeoutError("timeout", message, outcome=outcome)
        return connection_error(message, error, outcome)

    async def close(self) -> None:
        """Waits for the calls of `during`, then ends all others with StoppedError."""
        self._is_closing = True
        await self._calls_ended.wait()
        self._is_closed = True
        for connection in self._busy:
            abort(connection)
        idle, self._idle = self._idle, []
        for _, writer in idle:
            writer.close()
        for _, writer in idle:
            try:
                await writer.wait_closed()
            except OSError:
                # The server has already closed the connection.
                pass

    async def _connect(self) -> Connection:
        if self._is_closed:
            raise closed_error()
        while self._idle:
            connection = self._idle.pop()
            connection[0].is_idle = False
            if is_usable(connection):
                return connection
            abort(connection)
        loop = asyncio.get_running_loop()
        reader = Reader(MAX_LINE_BYTES, loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(
            lambda: protocol, self._server.host, self._server.port, ssl=self._tls
        )
        if self._is_closed:
            transport.abort()
            raise closed_error()
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def is_usable(connection: Connection) -> bool:
    """Whether the server has neither closed an idle connection nor sent unexpected data."""
    reader, writer = connection
    return not reader.is_stale and not reader.at_eof() and not writer.is_closing()


def abort(connection: Connection) -> None:
    connection[1].transport.abort()


async def converse(
    connection: Connection, server: Server, request: Request, headers: dict[str, str]
) -> tuple[Response, bool]:
    """Sends a request and reads its response. Also returns whether the connection may be reused."""
    reader, writer = connection
    lines = [f"{request.method} {server.path}{request.path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    # Read the response immediately: it may arrive before the whole body is sent.
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + request.body)
    while True:
        version, status = await read_status(reader)
        received = await read_headers(reader)
        if status >= 200:
            break
    received_at = time.monotonic()
    body, is_delimited = await read_body(reader, status, received)
    is_kept = version == "HTTP/1.1" and received.get("connection", "").lower() != "close"
    is_sent = writer.transport.get_write_buffer_size() == 0
    return Response(status, received, body, received_at), is_delimited and is_kept and is_sent


async def read_status(reader: asyncio.StreamReader) -> tuple[str, int]:
    line = await reader.readuntil(b"\r\n")
    version, _, rest = line.decode("latin-1").partition(" ")
    status = rest[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or not status.isdigit():
        raise ProtocolError(f"{line[:64]!r} is not the first line of a response")
    return version, int(status)


async def read_headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise ProtocolError(f"{line[:64]!r} is not a header")
        headers[name.lower()] = value.strip()
    return headers


async def read_body(reader: Reader, status: int, headers: dict[str, str]) -> tuple[bytes, bool]:
    """Returns the body, and whether its end was marked."""
    if status in (204, 304):
        return b"", True
    if headers.get("transfer-encoding", "").lower() == "chunked":
        # The server sends a length; a proxy may use chunks instead.
        return await read_chunks(reader), True
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"])), True
    body = await reader.read()
    if reader.failure is not None:
        raise reader.failure
    return body, False


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    chunks = []
    while True:
        line = await reader.readuntil(b"\r\n")
        length = int(line.split(b";", 1)[0], 16)
        if length == 0:
            break
        chunks.append(await reader.readexactly(length))
        await reader.readexactly(2)
    await read_headers(reader)
    return b"".join(chunks)

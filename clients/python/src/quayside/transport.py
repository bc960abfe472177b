"""Connections of the blocking client."""

from __future__ import annotations

import builtins
import contextlib
import functools
import http.client
import io
import os
import selectors
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from .errors import ConnectionError, Outcome, QuaysideError, StoppedError, TimeoutError
from .protocol import Request, Response, Server, head_of


#: Sockets accept no timeout of more than 2**31 milliseconds.
LONGEST_TIMEOUT = 2_000_000.0


class Transport:
    """Idle connections to one server, shared by all threads."""

    def __init__(self, server: Server, authorize: Callable[[], str | None], tls: ssl.SSLContext | None) -> None:
        self._server = server
        self._authorize = authorize
        self._tls = tls if tls is not None or server.scheme == "http" else ssl.create_default_context()
        #: Reentrant, because a signal handler may close the client while its thread holds the lock.
        self._lock = threading.RLock()
        self._idle: list[http.client.HTTPConnection] = []
        #: The connections of calls, and the threads of these calls.
        self._busy: dict[http.client.HTTPConnection, int] = {}
        self._is_closed = False
        self._is_closing = False
        #: The threads of the calls that `close` waits for.
        self._calls: list[int] = []
        self._calls_changed = threading.Condition()
        TRANSPORTS.add(self)

    def check_open(self) -> None:
        """Raises if the client is closed, or is being closed."""
        if self._is_closing:
            raise closed_error()

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        """Wraps a call that `close` waits for."""
        thread = threading.get_ident()
        with self._calls_changed:
            self._calls.append(thread)
        try:
            yield
        finally:
            with self._calls_changed:
                self._calls.remove(thread)
                self._calls_changed.notify_all()

    def send(self, request: Request, timeout: float) -> Response:
        """Sends a request once. `timeout` limits the whole exchange, however slowly the response arrives."""
        deadline = time.monotonic() + timeout
        headers = head_of(self._server, request, self._authorize())
        connection = self._connect(timeout)
        is_sent = True
        try:
            connection.sock.settimeout(until(deadline))
            connection.response_class = functools.partial(TimedResponse, deadline)  # type: ignore[assignment]
            try:
                connection.request(request.method, self._server.path + request.path, request.body or None, headers)
            except builtins.ConnectionError:
                # The server rejects a too large body before all of it has arrived. Its response can be read.
                is_sent = False
            reply = connection.getresponse()
            received_at = time.monotonic()
            body = reply.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if self._is_closed:
                # `close` has ended the connection.
                raise closed_error("unknown") from error
            raise self._failure("failed before the response was complete", error, "unknown") from error
        except BaseException:
            # Such as KeyboardInterrupt. The rest of the response must not be read as that of the next request.
            connection.close()
            raise
        finally:
            with self._lock:
                self._busy.pop(connection, None)
        if is_sent and not reply.will_close:
            self._release(connection)
        else:
            connection.close()
        headers = {name.lower(): value for name, value in reply.getheaders()}
        return Response(reply.status, headers, body, received_at)

    def close(self) -> None:
        """Waits for the calls of `during`, then ends all others with StoppedError."""
        own = threading.get_ident()
        with self._calls_changed:
            self._is_closing = True
            # Do not wait for calls of this thread: a signal handler that interrupted one would wait forever.
            self._calls_changed.wait_for(lambda: all(thread == own for thread in self._calls))
            is_interrupting = own in self._calls
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            busy = [connection for connection, thread in self._busy.items() if not (is_interrupting and thread == own)]
        for connection in idle:
            connection.close()
        for connection in busy:
            shut_down(connection)

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                if self._is_closed:
                    raise closed_error()
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            if not is_readable(connection):
                return self._use(connection)
            # The server has closed it, or sent something unexpected.
            connection.close()
        connection = self._new(min(timeout, LONGEST_TIMEOUT))
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise self._failure("cannot be opened", error, "nothing-changed") from error
        return self._use(connection)

    def _use(self, connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
        thread = threading.get_ident()
        with self._lock:
            # A signal handler that closes the client does not end the call that it interrupted, if `close` waits for it.
            if not self._is_closed or thread in self._calls:
                self._busy[connection] = thread
                return connection
        connection.close()
        raise closed_error()

    def leave_to_parent(self) -> None:
        """Drops the connections in the child of a fork: two processes would read each other's responses."""
        # A thread of the parent, which does not exist here, may hold the lock or be in a call.
        self._lock = threading.RLock()
        self._calls_changed = threading.Condition()
        self._calls = []
        self._busy = {}
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _new(self, timeout: float) -> http.client.HTTPConnection:
        if self._server.scheme == "http":
            return http.client.HTTPConnection(self._server.host, self._server.port, timeout=timeout)
        return http.client.HTTPSConnection(self._server.host, self._server.port, timeout=timeout, context=self._tls)

    def _release(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            # The last connection is reused first, so after a burst of calls the first ones stay until the server closes
            # them.
            unused = [first for first in self._idle[:1] if is_readable(first)]
            self._idle.append(connection)
            if self._is_closed:
                unused = list(self._idle)
            self._idle[:] = [idle for idle in self._idle if idle not in unused]
        for idle in unused:
            idle.close()

    def _failure(self, what: str, error: Exception, outcome: Outcome) -> QuaysideError:
        message = f"The connection to {self._server.authority} {what}: {str(error) or type(error).__name__}"
        if isinstance(error, builtins.TimeoutError):
            return TimeoutError("timeout", message, outcome=outcome)
        return connection_error(message, error, outcome)


def connection_error(message: str, error: Exception, outcome: Outcome) -> ConnectionError:
    """Returns the error of a failed connection.

    Its code is `tls-failed` if another attempt would fail, too: one side rejects the certificate of the other, or the
    server does not speak TLS.
    """
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    # After the request, the connection is damaged, and the server may have received the request.
    is_without_tls = "WRONG_VERSION" in reason and outcome == "nothing-changed"
    if is_without_tls or "CERT" in reason or "UNKNOWN_CA" in reason:
        return ConnectionError("tls-failed", message)
    return ConnectionError("connection-failed", message, outcome=outcome)


def closed_error(outcome: Outcome = "nothing-changed") -> StoppedError:
    return StoppedError("stopped", "The client is closed.", outcome=outcome)


def shut_down(connection: http.client.HTTPConnection) -> None:
    """Ends the call of another thread that reads from a connection. To close it would not wake that thread."""
    # None: that thread has closed it.
    if (sock := connection.sock) is not None:
        with contextlib.suppress(OSError):
            # Not the method of a TLS socket, which would discard its encryption while the other thread uses it.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


#: All transports of this process, to be reset in the child of a fork.
TRANSPORTS: weakref.WeakSet[Transport] = weakref.WeakSet()


def leave_all_to_parent() -> None:
    for transport in list(TRANSPORTS):
        transport.leave_to_parent()


# Windows has no fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=leave_all_to_parent)


class TimedResponse(http.client.HTTPResponse):
    """Reads until a deadline. A socket's timeout would restart with each byte."""

    def __init__(self, deadline: float, sock: socket.socket, method: str | None = None) -> None:
        super().__init__(sock, method=method)
        self.fp.close()
        self._reader = TimedReader(sock, deadline)
        self.fp = io.BufferedReader(self._reader)

    def begin(self) -> None:
        super().begin()
        self._reader.is_head = False


class TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._socket = sock
        self._deadline = deadline
        self.is_head = True
        # Keeps the socket open if the connection is closed while the response is read.
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(until(self._deadline))
        count = self._raw.readinto(buffer)
        if count == 0 and self.is_head:
            # `http.client` accepts this as the end of the head: a truncated response would look like an empty one.
            raise http.client.RemoteDisconnected("The connection ended before the response had arrived.")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def until(deadline: float) -> float:
    return min(max(deadline - time.monotonic(), 0.001), LONGEST_TIMEOUT)


def is_readable(connection: http.client.HTTPConnection) -> bool:
    if connection.sock is None:
        # A signal handler has closed it.
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(0))

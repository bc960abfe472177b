"""The HTTP interface without I/O: builds requests, and decides when a request is repeated.

The blocking and the asyncio client share this module.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import random
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar
from urllib.parse import quote, unquote, urlencode, urlsplit

from .codec import Codec
from .errors import Bury, QuaysideError, RetryLater, ValidationError, text_of
from .models import Receipt

T = TypeVar("T")
LOG = logging.getLogger("quayside")
Action = Literal["commit", "rollback", "release", "extend", "bury"]
IdempotencyKey = str | Literal[False] | None
#: `own`: the caller's keys, one per line. `random`: one random key per request. `none`: requests are not repeated.
KeyKind = Literal["own", "random", "none"]

DEFAULT_URL = "http://127.0.0.1:3444"
NDJSON = "application/x-ndjson"
#: The longest wait of one request: proxies close silent connections, and a dead connection must be noticed.
POLL_SECONDS = 30.0
#: Time limit of a response, in addition to the wait that was requested.
REPLY_SECONDS = 30.0
#: The server stores 1 KiB of a reason. Longer ones could make a request with many settlements too large.
MAX_REASON_LENGTH = 1_000
#: Transient errors, after which the same request may succeed.
PASSING = frozenset(
    {
        "connection-failed",
        "internal",
        "outcome-unknown",
        "overloaded",
        "request-timeout",
        "shutting-down",
        "storage-unavailable",
        "too-many-consumers",
    }
)
ACTIONS: tuple[Action, ...] = ("commit", "rollback", "release", "extend", "bury")


@dataclass(frozen=True)
class Retry:
    """How a call is repeated after a transient error. `Retry(attempts=1)` never repeats. Times in seconds."""

    attempts: int = 10
    min: float = 0.1
    max: float = 5.0


@dataclass(frozen=True)
class Server:
    """The parsed address of a server."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: bytes = b""
    content_type: str | None = None
    #: The key of the whole request, the same in all attempts.
    idempotency_key: str | None = None
    #: How many seconds the server may wait before it responds.
    wait: float = 0.0
    #: Whether the request may be sent again after an unknown outcome.
    repeatable: bool = True


@dataclass(frozen=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes
    #: When its head arrived, by the monotonic clock. A long body arrives later.
    received_at: float
    #: Whether an earlier attempt of the same call may have been applied.
    after_unknown: bool = False


@dataclass(frozen=True)
class Settlement:
    """One action on one reservation.

    Arguments are validated here because the server rejects a request as a whole, and requests contain settlements of
    other callers.
    """

    action: Action
    receipt: Receipt
    delay: float | None = None
    lease: float | None = None
    reason: str | None = None
    #: Whether an earlier call with this action may have been applied.
    is_repeat: bool = False

    def __post_init__(self) -> None:
        if self.delay is not None:
            milliseconds("delay", self.delay)
        if self.lease is not None:
            milliseconds("lease", self.lease, at_least=1)
        if self.reason is not None and not isinstance(self.reason, str):
            raise ValidationError([f"reason={self.reason!r:.64} must be a str."])


def server_of(url: str | None) -> Server:
    given = url_of(url)
    # Hide what precedes an @: it may contain a password.
    shown = repr(f"***@{given.rpartition('@')[2]}" if "@" in given else given)[:64]
    try:
        parts = urlsplit(given)
        port = parts.port
    except ValueError as error:
        # Do not append the error, which quotes the URL, if the URL may contain a password.
        why = "" if "@" in given else f": {error}"
        raise ValueError(f"url {shown} is not a URL{why}.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"url {shown} must be http://HOST[:PORT] or https://HOST[:PORT].")
    if parts.query or parts.fragment:
        raise ValueError(f"url {shown} must have neither a query nor a fragment.")
    usual = 443 if parts.scheme == "https" else 80
    path = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
    return Server(parts.scheme, parts.hostname, port or usual, path)


def url_of(url: str | None) -> str:
    return url if url is not None else os.environ.get("QUAYSIDE_URL") or DEFAULT_URL


def authorization_of(auth: tuple[str, str] | str | None, url: str | None = None) -> str | None:
    """Returns the value of the Authorization header for a user and password or a token.

    If `auth` is None, the credentials come from the URL or the environment. Returns None without credentials.
    """
    if auth is None:
        parts = urlsplit(url_of(url))
        user = unquote(parts.username or "") or os.environ.get("QUAYSIDE_USER")
        password = unquote(parts.password or "") or os.environ.get("QUAYSIDE_PASSWORD")
        token = None if parts.username else os.environ.get("QUAYSIDE_TOKEN")
        auth = token or ((user, password or "") if user else None)
    if auth is None:
        return None
    if isinstance(auth, str):
        # Remove the line break of a token that was read from a file.
        return f"Bearer {auth.strip()}"
    user, password = auth
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def head_of(server: Server, request: Request, authorization: str | None) -> dict[str, str]:
    headers = {"Host": server.authority, "Accept": f"{NDJSON}, application/json, application/problem+json"}
    if request.content_type is not None:
        headers["Content-Type"] = request.content_type
    if request.idempotency_key is not None:
        headers["Idempotency-Key"] = request.idempotency_key
    if authorization is not None:
        # Check it here, because errors of the HTTP library would quote the credentials.
        if not all(" " <= character <= "~" or character == "\t" for character in authorization):
            raise ValidationError(["The value of the Authorization header has a line break, or is not ASCII."])
        headers["Authorization"] = authorization
    if request.body or request.method != "GET":
        headers["Content-Length"] = str(len(request.body))
    return headers


def queue_path(name: str) -> str:
    namespace, slash, queue = name.partition("/")
    if not namespace or not slash or not queue:
        raise ValueError(f'queue name {name[:64]!r} must be "NAMESPACE/QUEUE".')
    # Proxies resolve these as path segments, even if they are encoded.
    if {".", ".."} & {namespace, queue}:
        raise ValueError(f'queue name {name[:64]!r} must be "NAMESPACE/QUEUE"; neither part may be "." or "..".')
    return f"/q/{quote(namespace, safe='')}/{quote(queue, safe='')}"


class Attempts:
    """Decides whether a call is repeated, and when."""

    def __init__(self, retry: Retry, request: Request, deadline: float) -> None:
        self._retry = retry
        self._request = request
        self._deadline = deadline
        self._failed = 0
        self.after_unknown = False

    def delay_after(self, error: QuaysideError, now: float) -> float:
        """Returns the seconds until the next attempt. Raises the error if the call is not repeated."""
        self._failed += 1
        if error.outcome == "unknown":
            self.after_unknown = True
        may_repeat = error.code in PASSING and (self._request.repeatable or error.outcome != "unknown")
        delay = backoff(self._failed, error, self._retry.min, self._retry.max)
        if not may_repeat or self._failed >= self._retry.attempts or now + delay >= self._deadline:
            # Raise the last attempt's error. If any attempt had an unknown outcome, the call has.
            error.outcome = "unknown" if self.after_unknown else error.outcome
            raise error
        return delay


def backoff(failed: int, error: QuaysideError, first: float, longest: float) -> float:
    """Returns the delay in seconds after `failed` failures in a row, partly random to spread clients."""
    # A power of more than 1023 would raise an OverflowError.
    delay = min(first * 2.0 ** min(failed - 1, 1023), longest)
    return max(delay * random.uniform(0.5, 1.0), min(error.retry_after or 0.0, longest))


def insert_line(
    codec: Codec[T],
    data: T,
    *,
    delay: float | None,
    at: datetime | None,
    ttl: float | None,
    headers: Mapping[str, str] | None,
    groups: Sequence[str] | None,
    key: str | None,
) -> bytes:
    """Returns an element as a line of NDJSON."""
    try:
        encoded, content_type = codec.encode(data)
        body = encoded.encode() if isinstance(encoded, str) else encoded
    except (ValueError, TypeError) as error:
        raise ValidationError([f"The data cannot be encoded: {error}"]) from error
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise ValidationError([f"The codec returned the body {body!r:.64}. Allowed: bytes or str."])
    line: dict[str, Any] = {"contentType": content_type}
    try:
        line["text"] = str(body, "utf-8")
    except UnicodeDecodeError:
        line["base64"] = base64.b64encode(body).decode()
    if at is not None:
        if not isinstance(at, datetime):
            raise ValidationError([f"at={at!r:.64} must be a datetime."])
        if at.tzinfo is None:
            raise ValidationError([f"at={at.isoformat()} has no time zone. Give it one, such as timezone.utc."])
        line["mature"] = at.timestamp()
    for name, seconds in (("delay", delay), ("ttl", ttl)):
        if seconds is not None:
            milliseconds(name, seconds)
            line[name] = seconds
    if key is not None:
        line["key"] = key
    if headers:
        line["headers"] = dict(headers)
    if groups is not None:
        # A string is a sequence of strings, too: each letter would be a group.
        if isinstance(groups, str):
            raise ValidationError([f"groups={groups!r:.64} must be a list of names."])
        line["groups"] = list(groups)
    try:
        return json.dumps(line, ensure_ascii=False).encode()
    except (ValueError, TypeError) as error:
        raise ValidationError([f"The element cannot be sent: {error}"]) from error


def items_of(data: Iterable[T]) -> list[T]:
    # One element may be iterable, too: each letter of a text, or each key of a dict, would be an element.
    if isinstance(data, (str, bytes, bytearray, memoryview, Mapping)):
        raise ValidationError([f"data={data!r:.64} must be an iterable of elements, such as a list."])
    return list(data)


def key_kind(key: IdempotencyKey) -> KeyKind:
    if key is False:
        return "none"
    return "random" if key is None else "own"


def line_keys(key: IdempotencyKey, count: int) -> list[str | None]:
    """Returns the idempotency keys of the lines of `insert_many`; None without the caller's key."""
    if key is False or key is None:
        return [None] * count
    return [f"{key}-{index}" for index in range(count)]


def request_key(kind: KeyKind) -> str | None:
    return uuid.uuid4().hex if kind == "random" else None


def insert_request(path: str, lines: Iterable[bytes], kind: KeyKind, key: str | None) -> Request:
    body = b"\n".join(lines)
    return Request("POST", f"{path}/elements", body, NDJSON, idempotency_key=key, repeatable=kind != "none")


def take_request(
    path: str,
    *,
    count: int,
    wait: float,
    reserve: bool,
    group: str | None,
    lease: float | None,
    consumer: str | None,
) -> Request:
    options: dict[str, Any] = {"count": count, "to": milliseconds("wait", wait)}
    if reserve:
        options["reserve"] = True
    if lease is not None:
        options["lease"] = milliseconds("lease", lease, at_least=1)
    if group is not None:
        options["group"] = group
    if consumer is not None:
        options["tid"] = consumer
    # Repeat a reserve only: if its response is lost, the elements return after their leases. A pop's would be lost.
    body = json.dumps(options).encode()
    return Request("POST", f"{path}/take", body, "application/json", wait=wait, repeatable=reserve)


def settle_request(path: str, settlements: Sequence[Settlement]) -> Request:
    document: dict[str, list[dict[str, Any]]] = {}
    for index in settle_order(settlements):
        document.setdefault(settlements[index].action, []).append(settle_item(settlements[index]))
    body = json.dumps(document, ensure_ascii=False).encode(errors="replace")
    return Request("POST", f"{path}/settle", body, "application/json")


def settle_order(settlements: Sequence[Settlement]) -> list[int]:
    """Returns the order of settlements in a request, and of their results in the response: by action."""
    return sorted(range(len(settlements)), key=lambda index: ACTIONS.index(settlements[index].action))


def settle_item(settlement: Settlement) -> dict[str, Any]:
    receipt = settlement.receipt
    item: dict[str, Any] = {"id": receipt.id, "token": receipt.token}
    if receipt.group is not None:
        item["group"] = receipt.group
    if settlement.delay is not None:
        item["delay"] = milliseconds("delay", settlement.delay)
    if settlement.lease is not None:
        item["lease"] = milliseconds("lease", settlement.lease)
    if settlement.reason:
        item["reason"] = settlement.reason[:MAX_REASON_LENGTH]
    return item


def settlement_of(receipt: Receipt, error: BaseException, delay: float | None = None) -> Settlement:
    """Returns the settlement of an element whose handler, or `with` block, raised."""
    if isinstance(error, Bury):
        return Settlement("bury", receipt, reason=error.reason)
    reason = reason_of(error)
    if isinstance(error, RetryLater):
        delay, reason = error.delay, text_of(error)
    try:
        return Settlement("rollback", receipt, delay=None if delay is None else max(delay, 0.0), reason=reason)
    except (TypeError, ValidationError) as wrong:
        # Roll back anyway: without a settlement, the element would stay reserved until its lease ends.
        LOG.error("The retry delay of the queue is used: %s", wrong)
        return Settlement("rollback", receipt, reason=reason)


def reason_of(error: BaseException) -> str:
    """Returns the reason of a failed try, as stored with the element."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def raw_request(
    method: str, path: str, body: bytes | str | None, content_type: str, repeatable: bool | None
) -> Request:
    """Returns a request of the caller's own. By default, a GET is repeatable, unless it takes an element of a queue."""
    sent = (("method", method, "[A-Z]+"), ("path", path, "/[!-~]*"), ("content_type", content_type, "[ -~]+"))
    for name, value, pattern in sent:
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            raise ValidationError([f"{name}={value!r:.64} must match {pattern}."])
    if body is not None and not isinstance(body, (bytes, str)):
        raise ValidationError([f"body={body!r:.64} must be bytes or a str."])
    if repeatable is None:
        repeatable = method == "GET" and re.match(r"/q/[^/?]+/[^/?]+(\?|$)", path) is None
    encoded = body.encode() if isinstance(body, str) else body or b""
    return Request(method, path, encoded, None if body is None else content_type, repeatable=repeatable)


def browse_request(path: str, **query: str | int | None) -> Request:
    given = {name: value for name, value in query.items() if value is not None}
    return Request("GET", f"{path}/elements?{urlencode({**given, 'body': 'full'})}")


def milliseconds(name: str, seconds: float, at_least: int = 0) -> int:
    if isinstance(seconds, (int, float)) and 0 <= seconds <= 315_360_000 and round(seconds * 1000) >= at_least:
        return round(seconds * 1000)
    raise ValidationError([f"{name}={seconds!r:.64} must be from {at_least / 1000:g} to 315,360,000 seconds."])

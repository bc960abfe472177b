"""Parses the responses of the HTTP interface."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from .errors import ConnectionError, LeaseLostError, Outcome, QuaysideError
from .models import (
    Content,
    ElementId,
    FailedState,
    Holder,
    Look,
    QueueStatus,
    RawResponse,
    SelectorError,
    SelectorFailure,
)
from .protocol import KeyKind, Response, Settlement, settle_order


def raw_of(response: Response) -> RawResponse:
    """Returns the response to a request of the caller's own. Raises if it is an error, also one that takes return."""
    if (error := error_of(response, accepted=None)) is not None:
        raise error
    return RawResponse(response.status, response.headers, response.body)


def error_of(response: Response, accepted: str | None = "pop-timeout") -> QuaysideError | None:
    """Returns the error of a response; None if the call succeeded, or if the error has the accepted code, by default
    that of a wait that ended without an element.
    """
    if response.status < 300:
        return None
    problem: Any = None
    if response.headers.get("content-type", "").startswith("application/problem+json"):
        try:
            problem = json.loads(response.body)
        except ValueError:
            pass
    # Gateways send such documents, too, without a code.
    if not isinstance(problem, dict) or not isinstance(code := problem.get("code"), str):
        return foreign_error(response)
    request_id = problem.get("requestId")
    line = problem.get("line")
    if code == accepted:
        return None
    return QuaysideError(
        code,
        str(problem.get("detail", code)),
        status=response.status,
        request_id=None if request_id is None else str(request_id),
        retry_after=retry_after_of(response),
        outcome="unknown" if code in ("outcome-unknown", "internal") else "nothing-changed",
        line=line if isinstance(line, int) else None,
    )


def of_one(error: QuaysideError) -> QuaysideError:
    """Removes the line number from an error for a caller that inserted one element."""
    error.args = (re.sub(r"^Line \d+: ", "", error.args[0]),)
    error.line = None
    return error


def is_of_many(error: QuaysideError) -> bool:
    """Whether a request was rejected for its total size, so that its parts may succeed."""
    return error.code == "too-many-groups" or error.status == 413


def retry_after_of(response: Response) -> float | None:
    given = response.headers.get("retry-after", "")
    return float(given) if given.isdecimal() else None


def foreign_error(response: Response) -> QuaysideError:
    """Returns the error of a response that does not come from the server, but from a proxy."""
    status = response.status
    start = response.body[:64].decode(errors="replace")
    message = f"The response has status {status} and is not from Quayside: {start!r}."
    retry_after = retry_after_of(response)
    if status >= 500:
        # A proxy answers 502, 503 or 504 if it cannot reach the server, or times out.
        return ConnectionError("connection-failed", message, status=status, retry_after=retry_after, outcome="unknown")
    # Proxies answer 429 to limit requests, and 408 to an incomplete one. Neither was forwarded.
    code = {408: "request-timeout", 429: "overloaded"}.get(status, "unexpected-response")
    outcome: Outcome = "nothing-changed" if status >= 300 else "unknown"
    return QuaysideError(code, message, status=status, retry_after=retry_after, outcome=outcome)


def moment(text: str) -> datetime:
    # Python 3.10 does not read the letter Z.
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def taken(response: Response) -> list[dict[str, Any]]:
    if response.status != 200:
        return []
    return [document(response, "id", line) for line in response.body.rstrip().split(b"\n")]


def document(response: Response, member: str, text: bytes | None = None) -> dict[str, Any]:
    """Parses the JSON object of a response, which must have a member. A proxy may answer 200 as well."""
    try:
        value = json.loads(response.body if text is None else text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or member not in value:
        raise foreign_error(response)
    return value


def ids_of(response: Response, kind: KeyKind) -> list[ElementId]:
    """Returns the ids of inserted elements."""
    inserted = document(response, "ids")
    # With a random key, only the request itself can have been sent before.
    repeated = set(inserted.get("repeated", ())) if kind == "own" else set()
    return [ElementId(element_id, place in repeated) for place, element_id in enumerate(inserted["ids"])]


def content_of(record: Mapping[str, Any]) -> Content:
    text = record.get("text")
    body = text.encode() if isinstance(text, str) else base64.b64decode(record.get("base64") or "")
    return Content(
        id=record["id"],
        body=body,
        content_type=record.get("contentType") or "",
        content_encoding=record.get("contentEncoding"),
        headers=record.get("headers") or {},
        tries=record["tries"],
        mature=moment(record["mature"]),
        is_hidden="text" not in record and "base64" not in record,
    )


def look_of(record: Mapping[str, Any]) -> Look:
    given = record["holder"]
    holder = None
    if given is not None:
        holder = Holder(given["tid"], given["user"], moment(given["since"]), moment(given["until"]))
    expires_at = record["expiresAt"]
    return Look(
        record["state"],
        moment(record["insertedAt"]),
        None if expires_at is None else moment(expires_at),
        record["reason"],
        holder,
    )


def selector_failure(page: Mapping[str, Any]) -> SelectorFailure | None:
    error = page["error"]
    return None if error is None else SelectorFailure(page["failed"], SelectorError(error["id"], error["message"]))


def settle_results(
    settlements: Sequence[Settlement], response: Response
) -> list[datetime | FailedState | QuaysideError]:
    """Returns the result of each settlement, in the order of the argument."""
    results: list[datetime | FailedState | QuaysideError] = ["unknown"] * len(settlements)
    for index, result in zip(settle_order(settlements), document(response, "results")["results"]):
        settlement = settlements[index]
        results[index] = settled(settlement, result, response.after_unknown or settlement.is_repeat)
    return results


def settled(
    settlement: Settlement, result: Mapping[str, Any], after_unknown: bool
) -> datetime | FailedState | QuaysideError:
    """Returns the new lease end for `extend`, where the element is after a rollback or a burial, or the error.

    The state has no meaning for other actions that succeeded.
    """
    outcome = result["outcome"]
    action = settlement.action
    if outcome == "dead-lettered":
        return "dead-lettered"
    if outcome == "done":
        return moment(result["until"]) if "until" in result else "waiting"
    if after_unknown and action != "extend":
        # An earlier attempt may have succeeded. The token is of this reservation: the element is no longer ours.
        gone = ("not-found",) if action in ("commit", "bury") else ("not-found", "not-reserved", "lease-lost")
        if outcome in gone:
            # After a burial, the element is gone from the queue; after a rollback, it may be anywhere.
            return "dead-lettered" if action == "bury" else "unknown"
    return LeaseLostError(
        "lease-lost", f"The reservation of element {settlement.receipt.id} is over: {action} was answered {outcome}."
    )


def may_be_done(error: BaseException) -> bool:
    """Whether a call that raised this may have been applied.

    Other errors without an outcome may come from a call that was never sent, such as from the `auth` function.
    """
    return isinstance(error, QuaysideError) and error.outcome == "unknown"


def already_settled(element_id: str) -> QuaysideError:
    return QuaysideError("already-settled", f"Element {element_id} is already settled.")


def status_of(record: Mapping[str, Any]) -> QueueStatus:
    next_mature = record["next_mature_t"]
    return QueueStatus(
        type=record["type"],
        is_paused=record["paused"],
        total=record["totalSize"],
        ready=record["size"],
        scheduled=record["schedSize"],
        reserved=record["resvSize"],
        next_mature=None if next_mature is None else moment(next_mature),
        oldest_ready=record["oldestReadyAge"],
        stats={name: count for name, count in record["stats"].items() if isinstance(count, int)},
    )

"""The blocking client against a real server."""

from __future__ import annotations

import json
import os
import pickle
import re
import threading
import traceback
from datetime import datetime, timedelta, timezone
from typing import Any
from unittest.mock import patch

from quayside import (
    Bury,
    ConnectionError,
    LeaseLostError,
    Quayside,
    QuaysideError,
    Retry,
    RetryLater,
    SelectorFailure,
    StoppedError,
    ValidationError,
)
from quayside.protocol import Request, authorization_of

from .support import URL, ClientTest, fresh_name


class Lines:
    """A codec of a caller's own."""

    def encode(self, data: list[str]) -> tuple[bytes, str]:
        return "\n".join(data).encode(), "text/plain"

    def decode(self, body: bytes, content_type: str) -> list[str]:
        if content_type != "text/plain":
            raise ValueError(f"{content_type} is not text/plain")
        return body.decode().split("\n")


class InsertAndTake(ClientTest):
    def test_data_return_as_they_were_inserted(self) -> None:
        for data in [{"order": 1, "name": "Ülä €"}, [1, None, True], "text", 0, b"\xff\x00\n", bytearray(b"b")]:
            element_id = self.queue.insert(data, headers={"lang": "en"})
            element = self.queue.pop()
            assert element is not None
            self.assertEqual(element.data, data)
            self.assertEqual(element.id, element_id)
            self.assertEqual(element.headers, {"lang": "en"})
            self.assertEqual(element.tries, 0)
            self.assertLess(abs(element.mature - datetime.now(timezone.utc)), timedelta(minutes=1))

    def test_bodies_that_other_clients_inserted_are_decoded_by_their_type(self) -> None:
        codec = Lines()
        lines = self.client.queue(self.queue.name, codec)
        lines.insert(["a", "b"])
        element = self.queue.pop()
        assert element is not None
        self.assertEqual((element.data, element.body, element.content_type), ("a\nb", b"a\nb", "text/plain"))
        self.queue.insert(1)
        broken = lines.pop()
        assert broken is not None
        with self.assertRaises(ValidationError) as raised:
            _ = broken.data
        self.assertIn("application/json is not text/plain", raised.exception.issues[0])

    def test_a_codec_may_encode_to_str_but_not_to_anything_else(self) -> None:
        class Fixed:
            def encode(self, data: Any) -> tuple[Any, str]:
                return data, "text/plain"

            def decode(self, body: bytes, content_type: str) -> bytes:
                return body

        queue = self.client.queue(self.queue.name, Fixed())
        bodies: tuple[Any, ...] = ("Ülä €", "", "ä".encode(), b"\xff", bytearray(b"a"), memoryview(b"b"))
        queue.insert_many(bodies)
        expected = [body.encode() if isinstance(body, str) else bytes(body) for body in bodies]
        self.assertEqual([element.data for element in iter(queue.pop, None) if element], expected)
        for body in (None, 3, ["a"]):
            with self.assertRaisesRegex(ValidationError, re.escape(f"The codec returned the body {body!r}. Allowed:")):
                queue.insert(body)
        with self.assertRaisesRegex(ValidationError, "surrogates not allowed"):
            queue.insert("\ud800")

    def test_many_are_inserted_in_order_and_all_or_none(self) -> None:
        self.assertEqual(self.queue.insert_many([]), [])
        ids = self.queue.insert_many(["a", "b", "c"])
        self.assertEqual(len(set(ids)), 3)
        self.assertEqual(self.taken(), ["a", "b", "c"])
        with self.assertRaises(QuaysideError) as raised:
            self.queue.insert_many(["d", "e"], headers={"bad name": "x"})
        self.assertEqual((raised.exception.code, raised.exception.outcome), ("invalid-header", "nothing-changed"))
        self.assertEqual(self.taken(), [])

    def test_many_may_come_from_a_generator(self) -> None:
        self.assertEqual(self.queue.insert_many(number for number in range(0)), [])
        self.assertEqual(len(self.queue.insert_many((number for number in range(3)), idempotency_key="key")), 3)
        self.assertEqual(self.taken(), [0, 1, 2])

    def test_a_printed_queue_or_element_shows_its_name_or_id_but_no_body(self) -> None:
        id = self.queue.insert("secret")
        job = self.queue.reserve()
        self.assertEqual(repr(job), f"<Reservation {id!r} tries=0>")
        self.assertEqual(repr(self.queue), f"<Queue {self.queue.name!r}>")

    def test_a_text_or_a_dict_is_not_taken_for_many_elements(self) -> None:
        ones: list[Any] = ["abc", b"abc", bytearray(b"abc"), memoryview(b"abc"), {"order": 5}]
        for one in ones:
            with self.assertRaisesRegex(ValidationError, "must be an iterable of elements"):
                self.queue.insert_many(one)
        self.assertEqual(self.queue.status().total, 0)

    def test_an_idempotency_key_is_stored_once(self) -> None:
        first = self.queue.insert("a", idempotency_key="key")
        second = self.queue.insert("a", idempotency_key="key")
        self.assertEqual((second, second.is_repeat, first.is_repeat), (first, True, False))
        self.queue.insert_many(["x"], idempotency_key="pair")
        pair = self.queue.insert_many(["x", "y"], idempotency_key="pair")
        self.assertEqual([element_id.is_repeat for element_id in pair], [True, False])
        self.queue.insert("z", idempotency_key=False)
        self.assertEqual(self.taken(), ["a", "x", "y", "z"])

    def test_each_element_of_many_has_its_own_key_also_a_single_one(self) -> None:
        (first,) = self.queue.insert_many(["a"], idempotency_key="many")
        self.assertEqual(self.queue.insert("a", idempotency_key="many-0"), first)
        self.queue.insert("a", idempotency_key="many")
        self.assertEqual(self.taken(), ["a", "a"])
        with self.assertRaises(QuaysideError):
            self.queue.insert("b", idempotency_key="")

    def test_data_are_decoded_once(self) -> None:
        self.queue.insert({"order": 1})
        element = self.queue.pop()
        assert element is not None
        element.data["seen"] = True
        self.assertEqual(element.data, {"order": 1, "seen": True})

    def test_delay_and_at_schedule_and_ttl_expires(self) -> None:
        self.queue.insert("later", delay=3600)
        self.queue.insert("at", at=datetime.now(timezone.utc) + timedelta(hours=2))
        self.queue.insert("mortal", ttl=3600)
        self.assertEqual(self.taken(), ["mortal"])
        status = self.queue.status()
        self.assertEqual((status.ready, status.scheduled, status.total, status.is_paused), (0, 2, 2, False))
        assert status.next_mature is not None
        self.assertGreater(status.next_mature, datetime.now(timezone.utc) + timedelta(minutes=50))
        with self.assertRaises(ValidationError):
            self.queue.insert("naive", at=datetime(2030, 1, 1))

    def test_a_waiting_call_gets_what_arrives(self) -> None:
        self.assertIsNone(self.queue.pop(wait=0.01))
        found: list[Any] = []

        def take() -> None:
            element = self.queue.pop(wait=None)
            assert element is not None
            found.append(element.data)

        thread = threading.Thread(target=take)
        thread.start()
        self.queue.insert("arrived")
        thread.join()
        self.assertEqual(found, ["arrived"])

    def test_a_call_that_is_cancelled_on_the_server_raises_pop_cancelled(self) -> None:
        errors: list[QuaysideError] = []

        def take() -> None:
            try:
                self.queue.pop(wait=None, consumer="one")
            except QuaysideError as error:
                errors.append(error)

        thread = threading.Thread(target=take)
        thread.start()
        while thread.is_alive():
            self.queue.cancel("one", 10)
            thread.join(0.01)
        self.assertEqual([error.code for error in errors], ["pop-cancelled"])

    def test_groups_of_a_stream_take_the_same_element(self) -> None:
        stream = self.client.queue(fresh_name().replace("N/", "events/"))
        stream.insert("news", groups=["mail", "audit"])
        for group in ("mail", "audit"):
            job = stream.reserve(group=group)
            assert job is not None
            self.assertEqual(job.data, "news")
            job.commit()
        self.assertIsNone(stream.reserve(group="mail"))

    def test_browsing_takes_nothing_and_reads_every_page(self) -> None:
        self.queue.insert_many(list(range(250)))
        self.assertEqual([element.data for element in self.queue.browse()], list(range(250)))
        accepted = self.queue.browse(where="env.msg.payload > 247")
        self.assertEqual([(element.data, element.state) for element in accepted], [(248, "ready"), (249, "ready")])
        self.assertEqual(self.queue.status().ready, 250)

    def test_browsing_shows_when_an_element_expires(self) -> None:
        self.queue.insert("never")
        self.queue.insert("later", ttl=3600)
        never, later = self.queue.browse()
        self.assertIsNone(never.expires_at)
        assert later.expires_at is not None
        self.assertGreater(later.expires_at, datetime.now(timezone.utc) + timedelta(minutes=50))

    def test_elements_for_which_the_selector_fails_are_left_out_and_reported(self) -> None:
        self.queue.insert_many([{"order": {"total": 5}}, {"order": None}, 7])
        failures: list[SelectorFailure] = []
        found = self.queue.browse(where="env.msg.payload.order.total > 1", on_selector_error=failures.append)
        self.assertEqual([element.data for element in found], [{"order": {"total": 5}}])
        (failure,) = failures
        self.assertEqual(failure.failed, 2)
        self.assertIn("null", failure.error.message)
        self.assertEqual(failure.error.id, [element.id for element in self.queue.browse()][1])

    def test_a_paused_queue_hands_out_nothing(self) -> None:
        self.queue.insert("held")
        self.queue.pause()
        self.assertIsNone(self.queue.pop())
        self.assertTrue(self.queue.status().is_paused)
        self.queue.resume()
        self.assertEqual(self.taken(), ["held"])


class Reservations(ClientTest):
    def test_a_block_commits_at_its_end(self) -> None:
        self.queue.insert_many(["a", "b"])
        seen = []
        for job in self.queue.elements(wait=0):
            with job:
                seen.append(job.data)
        self.assertEqual(seen, ["a", "b"])
        self.assertEqual(self.queue.status().total, 0)

    def test_a_block_that_raises_rolls_back_with_the_reason(self) -> None:
        self.queue.insert("a")
        with self.assertRaises(KeyError):
            with self._reserved():
                raise KeyError("missing\nkey")
        (element,) = self.queue.browse()
        self.assertEqual((element.state, element.tries), ("ready", 1))
        self.assertIn("KeyError: 'missing", element.reason or "")

    def test_retry_later_and_bury_decide_what_becomes_of_the_element(self) -> None:
        self.queue.insert("a")
        with self.assertRaises(RetryLater):
            with self._reserved():
                raise RetryLater(3600)
        self.assertEqual(self.queue.status().scheduled, 1)
        self.queue.insert("b")
        with self.assertRaises(Bury):
            with self._reserved():
                raise Bury("no such address")
        dead = self.client.queue("N/__deadletter__")
        reasons = {element.data: element.headers.get("x-dl-reason") for element in dead.browse()}
        self.assertEqual(reasons["b"], "no such address")
        while dead.pop() is not None:
            pass

    def test_rollback_and_bury_say_where_the_element_is(self) -> None:
        self.client.request("PUT", f"/q/{self.queue.name}/options", body='{"deadLetter": {"maxTries": 2}}')
        self.queue.insert("a")
        self.assertEqual(self._reserved().rollback(), "waiting")
        self.assertEqual(self._reserved().rollback(), "dead-lettered")
        self.queue.insert("b")
        self.assertEqual(self._reserved().bury("no such address"), "dead-lettered")
        dead = self.client.queue("N/__deadletter__")
        while dead.pop() is not None:
            pass

    def test_an_extended_lease_outlives_its_first_end(self) -> None:
        self.queue.insert("a")
        job = self._reserved(lease=30)
        self.assertGreater(job.extend(3600), datetime.now(timezone.utc) + timedelta(minutes=50))
        job.commit()

    def test_a_reservation_that_is_settled_is_not_extended_and_not_lost(self) -> None:
        self.queue.insert("x")
        job = self._reserved()
        settle = self.queue.settle

        def commit_first(settlements: Any, timeout: Any) -> Any:
            patched.stop()
            job.commit()
            return settle(settlements, timeout)

        patched = patch.object(self.queue, "settle", commit_first)
        patched.start()
        for _ in ("while it is committed", "after that"):
            with self.assertRaises(QuaysideError) as raised:
                job.extend()
            self.assertEqual(raised.exception.code, "already-settled")

    def test_a_rejected_insert_names_no_line_since_its_caller_sent_none(self) -> None:
        with self.assertRaises(QuaysideError) as raised:
            self.queue.insert("x", headers={"": "x"})
        self.assertRegex(str(raised.exception), '^Header ""')
        with self.assertRaisesRegex(QuaysideError, '^Line 1: Header ""'):
            self.queue.insert_many(["x"], headers={"": "x"})

    def test_a_settlement_that_was_interrupted_may_be_tried_again(self) -> None:
        self.queue.insert("a")
        job = self._reserved()
        for error in (KeyboardInterrupt(), OSError("no token")):
            with patch.object(self.queue, "settle", side_effect=error), self.assertRaises(type(error)):
                job.commit()
        job.commit()

    def test_a_lease_that_is_over_is_a_lease_lost_error(self) -> None:
        self.queue.insert("a")
        late = self._reserved(lease=0.01)
        again = self.queue.reserve(wait=None)
        assert again is not None
        self.assertEqual(again.tries, 1)
        for settle in (late.extend, late.commit):
            with self.assertRaises(LeaseLostError) as raised:
                settle()
            self.assertEqual(raised.exception.code, "lease-lost")
        again.commit()
        with self.assertRaises(QuaysideError) as settled:
            again.commit()
        self.assertEqual(settled.exception.code, "already-settled")

    def _reserved(self, lease: float | None = None) -> Any:
        job = self.queue.reserve(lease=lease)
        assert job is not None
        return job


class Failures(ClientTest):
    def test_wrong_arguments_name_the_value(self) -> None:
        for url in ("localhost:3444", "http://", "ftp://x", "http://x/?a=1", "http://x:99999"):
            with self.assertRaises(ValueError):
                Quayside(url)
        for url in ("ada:secret@x", "http://ada:secret@x:y", "ftp://ada:secret@x", "http://ada:secret@x/?a", "//:secret@[x"):
            with self.assertRaisesRegex(ValueError, r"^url '\*\*\*@") as raised:
                Quayside(url)
            self.assertNotIn("secret", "".join(traceback.format_exception(raised.exception)[-1]))
        with self.assertRaisesRegex(ValueError, "'orders' must be"):
            self.client.queue("orders")
        for name in ("N/..", "N/.", "../orders", "./orders"):
            with self.assertRaisesRegex(ValueError, r"neither part may be"):
                self.client.queue(name)
        with self.assertRaisesRegex(ValidationError, "cannot be encoded"):
            self.queue.insert(float("nan"))
        with self.assertRaisesRegex(ValidationError, "delay=nan must be from 0 to"):
            self.queue.insert(1, delay=float("nan"))
        with self.assertRaisesRegex(ValidationError, "ttl=inf must be from 0 to"):
            self.queue.insert(1, ttl=float("inf"))
        with self.assertRaisesRegex(ValidationError, "wait=-1"):
            self.queue.pop(wait=-1)
        wrong: Any = "2030-01-01"
        with self.assertRaisesRegex(ValidationError, "at='2030-01-01' must be a datetime"):
            self.queue.insert(1, at=wrong)
        with self.assertRaisesRegex(ValidationError, "groups='mail' must be a list"):
            self.queue.insert(1, groups="mail")
        self.assertEqual(self.queue.status().total, 0)

    def test_credentials_come_from_a_pair_a_function_or_the_environment(self) -> None:
        with Quayside(URL, auth=("test1", "test1")) as client:
            client.queue(self.queue.name).status()
        with Quayside(URL, auth=lambda: "Basic dGVzdDE6dGVzdDE=") as client:
            client.queue(self.queue.name).status()
        with Quayside(URL.replace("://", "://te%73t1:test1@")) as client, patch.dict(os.environ, {"QUAYSIDE_TOKEN": "x"}):
            client.queue(self.queue.name).status()
        self.assertEqual(authorization_of(None, "http://%C3%A4:50%@x"), authorization_of(("ä", "50%")))
        self.assertEqual(authorization_of(("ann", "x"), "http://ben:y@x"), authorization_of(("ann", "x")))
        with Quayside(URL, auth=("test1", "wrong")) as client:
            with self.assertRaises(QuaysideError) as raised:
                client.queue(self.queue.name).status()
        self.assertEqual((raised.exception.status, raised.exception.code), (401, "unauthorized"))

    def test_a_request_sends_any_call_of_the_http_interface(self) -> None:
        element_id = self.queue.insert("x", delay=3600)
        path = f"/q/{self.queue.name}"
        self.assertEqual(self.client.request("DELETE", f"{path}/{element_id}").status, 204)
        self.assertEqual(self.queue.status().total, 0)
        inserted = self.client.request("PUT", path, body="ä", content_type="text/plain; charset=utf-8")
        self.assertEqual(json.loads(inserted.text).keys(), {"id"})
        taken = self.client.request("GET", path)
        self.assertEqual((taken.text, taken.headers["content-type"]), ("ä", "text/plain; charset=utf-8"))
        with self.assertRaises(QuaysideError) as raised:
            self.client.request("GET", f"{path}?to=0")
        self.assertEqual((raised.exception.code, raised.exception.status), ("pop-timeout", 504))

    def test_a_request_is_repeated_after_an_unknown_outcome_only_if_that_is_harmless(self) -> None:
        lost = ConnectionError("connection-failed", "lost", outcome="unknown")
        client = Quayside(URL, retry=Retry(attempts=3, min=0.001))
        self.addCleanup(client.close)
        for method, path, repeatable, sent in (
            ("GET", f"/q/{self.queue.name}/status", None, 3),
            ("GET", f"/q/{self.queue.name}", None, 1),
            ("GET", f"/q/{self.queue.name}?reserve=true", None, 1),
            ("GET", f"/q/{self.queue.name}?reserve=true", True, 3),
            ("POST", "/operations", None, 1),
        ):
            with patch.object(client._transport, "send", side_effect=lost) as send, self.assertRaises(ConnectionError):
                client.request(method, path, repeatable=repeatable)
            self.assertEqual(send.call_count, sent, (method, path))

    def test_a_request_that_cannot_be_sent_is_rejected(self) -> None:
        wrong: list[dict[str, Any]] = [
            {"path": "q/N/x"},
            {"path": "/q/N/x y"},
            {"path": "/q/N/ä"},
            {"method": "GET /x HTTP/1.1\r\n"},
            {"content_type": "text/plain\r\nx: y"},
            {"body": {"a": 1}},
        ]
        for arguments in wrong:
            with self.assertRaises(ValidationError, msg=str(arguments)):
                request: dict[str, Any] = {"method": "POST", "path": "/x", **arguments}
                self.client.request(**request)

    def test_an_api_token_is_accepted_as_an_argument_and_from_the_environment(self) -> None:
        body = json.dumps({"name": "test"}).encode()
        request = Request("POST", "/tokens", body, "application/json", repeatable=False)
        token = json.loads(self.client.send(request, None).body)["token"]
        with Quayside(URL, auth=token) as client:
            client.queue(self.queue.name).status()
        with patch.dict(os.environ, {"QUAYSIDE_TOKEN": token, "QUAYSIDE_PASSWORD": "wrong"}):
            with Quayside(URL) as client:
                client.queue(self.queue.name).status()
        with Quayside(URL, auth="qs_wrong") as client, self.assertRaises(QuaysideError) as raised:
            client.queue(self.queue.name).status()
        self.assertEqual((raised.exception.status, raised.exception.code), (401, "unauthorized"))

    def test_an_empty_variable_is_one_that_is_not_set(self) -> None:
        with patch.dict(os.environ, {"QUAYSIDE_URL": ""}):
            Quayside().close()

    def test_an_error_is_the_same_after_it_came_from_another_process(self) -> None:
        for error in (
            QuaysideError("queue-full", "It is full.", status=507, request_id="r", retry_after=1.0, outcome="unknown", line=2),
            ConnectionError("connection-failed", "It is gone."),
            ValidationError(["One.", "Two."]),
            RetryLater(5, "soon"),
            Bury("never"),
        ):
            copy = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(copy), str(copy), vars(copy)), (type(error), str(error), vars(error)))

    def test_a_body_that_is_rejected_before_it_has_arrived_is_too_large(self) -> None:
        with self.assertRaises(QuaysideError) as raised:
            self.queue.insert("x" * 20_000_000)
        self.assertEqual((raised.exception.code, raised.exception.outcome), ("body-too-large", "nothing-changed"))

    def test_a_closed_client_raises_stopped_error(self) -> None:
        self.client.close()
        with self.assertRaises(StoppedError):
            self.queue.status()

    def test_a_server_that_does_not_run_is_a_connection_error_and_changes_nothing(self) -> None:
        with Quayside("http://127.0.0.1:9", retry=Retry(attempts=2, min=0.001)) as client:
            with self.assertRaises(ConnectionError) as raised:
                client.queue("N/q").insert("a")
        self.assertEqual(raised.exception.outcome, "nothing-changed")

    def test_a_call_may_be_attempted_more_than_a_thousand_times(self) -> None:
        with Quayside("http://127.0.0.1:9", retry=Retry(attempts=1_100, min=0.0, max=0.0)) as client:
            with self.assertRaises(ConnectionError):
                client.queue("N/q").status()

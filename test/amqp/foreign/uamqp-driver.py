"""Drives Debian's python3-uamqp, which supports TLS only, with the commands described in `driven.ts`."""

import binascii
import os
import sys
import time

import uamqp
from uamqp import authentication, constants, errors

WAIT_S = 60
STEP_S = 0.01


class Driver:
    """One connection per link: each client of the library has a single link."""

    def open(self, url, user, password, silence_ms):
        self.host, _, port = url.split("://")[1].partition(":")
        # The library reports a rejected login only once something is sent.
        self.auth = lambda: authentication.SASLPlain(
            self.host, user, password, port=int(port), verify=os.environ["DRIVER_CA"]
        )
        self.idle_ms = int(silence_ms)
        self.clients = {}
        self.receiver = None
        probe = self.client(uamqp.SendClient, self.url("N/probe"))
        probe.open()
        self.until(probe, probe.client_ready)
        probe.close()

    def url(self, address):
        return "amqps://%s/%s" % (self.host, address)

    def client(self, kind, address, **options):
        if self.idle_ms:
            options["idle_timeout"] = self.idle_ms
        policy = errors.ErrorPolicy(max_retries=0)
        return kind(address, auth=self.auth(), error_policy=policy, **options)

    def until(self, client, condition):
        end = time.monotonic() + WAIT_S
        while not condition():
            client._connection.work()
            if time.monotonic() > end:
                raise TimeoutError("nothing came")
            time.sleep(STEP_S)

    def send(self, address, body, content_type, *properties):
        if address not in self.clients:
            self.clients[address] = self.client(uamqp.SendClient, self.url(address))
        client = self.clients[address]
        kept = uamqp.message.MessageProperties(content_type=None if content_type == "-" else content_type)
        message = uamqp.Message(
            b"" if body == "-" else binascii.unhexlify(body),
            properties=kept,
            application_properties=dict(one.split("=", 1) for one in properties),
        )
        try:
            client.send_message(message)
        except errors.MessageException as refused:
            # The library maps the condition to an error code of its own.
            if refused.condition == constants.ErrorCodes.InvalidField:
                return "rejected"
            raise
        return "accepted"

    def receive(self, address, credit, mode, group):
        settled = constants.SenderSettleMode.Settled if mode == "settled" else None
        source = uamqp.address.Source(self.url(address))
        if group != "-":
            source.set_filter(group.encode(), name=b"x-ks-group", descriptor=b"x-ks-group")
        self.receiver = self.client(
            uamqp.ReceiveClient,
            source,
            prefetch=int(credit),
            auto_complete=False,
            shutdown_after_timeout=False,
            **({"send_settle_mode": settled} if settled else {}),
        )
        self.clients["receiver " + address] = self.receiver
        self.receiver.open()
        self.until(self.receiver, self.receiver.client_ready)
        self.receiver.do_work()

    def next(self):
        (self.message,) = self.receiver.receive_message_batch(max_batch_size=1, timeout=WAIT_S * 1000)
        body = b"".join(self.message.get_data())
        kind = self.message.properties.content_type if self.message.properties else None
        pairs = (self.message.application_properties or {}).items()
        properties = [b"%s=%s" % pair for pair in pairs]
        count = self.message.header.delivery_count if self.message.header else 0
        head = [binascii.hexlify(body) or b"-", kind or b"-", b"%d" % (count or 0)]
        return b" ".join(head + properties).decode()

    def settle(self, outcome):
        if outcome == "accepted":
            self.message.accept()
        elif outcome == "rejected":
            self.message.reject()
        elif outcome == "released":
            self.message.release()
        elif outcome == "modified":
            self.message.modify(True, False)
        # The outcome is sent by the next turns of the library's loop.
        for _ in range(3):
            self.receiver.do_work()

    def lost(self):
        end = time.monotonic() + WAIT_S
        try:
            while time.monotonic() < end:
                self.receiver.do_work()
                time.sleep(STEP_S)
            return "error nothing was lost"
        except errors.AMQPConnectionError as reason:
            return str(reason).replace("\n", " ")
        finally:
            self.close()

    def close(self):
        for client in self.clients.values():
            try:
                client.close()
            except errors.AMQPConnectionError:
                pass
        self.clients = {}


driver = Driver()
for line in sys.stdin:
    verb, *words = line.split()
    try:
        answer = "ok %s" % (getattr(driver, verb)(*words) or "")
    except Exception as error:  # whatever it is, the test shall show it
        answer = "error %s %s" % (type(error).__name__, str(error).replace("\n", " "))
    print(answer.rstrip(), flush=True)

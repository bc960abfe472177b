"""Drives Debian's python3-qpid-proton with the commands described in `driven.ts`."""

import binascii
import os
import sys

from proton import ConnectionException, Disposition, Message, SSLDomain, symbol
from proton.reactor import AtLeastOnce, AtMostOnce, Copy, Filter
from proton.utils import BlockingConnection, LinkDetached, SendException

WAIT_S = 60
VALUES = {"text": "Grüße, ☃", "number": 4711, "flag": True, "list": ["one", 2, False], "map": {"colour": "blue", "count": 3}}
OUTCOMES = {
    Disposition.ACCEPTED: "accepted",
    Disposition.REJECTED: "rejected",
    Disposition.RELEASED: "released",
    Disposition.MODIFIED: "modified",
}


class Driver:
    def open(self, url, user, password, silence_ms):
        login = dict(user=user, password=password, allowed_mechs="PLAIN", allow_insecure_mechs=True)
        if "DRIVER_CERT" in os.environ:
            domain = SSLDomain(SSLDomain.MODE_CLIENT)
            domain.set_trusted_ca_db(os.environ["DRIVER_CA"])
            domain.set_credentials(os.environ["DRIVER_CERT"], os.environ["DRIVER_KEY"], None)
            domain.set_peer_authentication(SSLDomain.VERIFY_PEER)
            login = dict(ssl_domain=domain, allowed_mechs="EXTERNAL")
        heartbeat = int(silence_ms) / 1000 or None
        self.connection = BlockingConnection(url, timeout=WAIT_S, heartbeat=heartbeat, **login)
        self.senders = {}
        self.receivers = {}

    def send(self, address, body, content_type, *properties):
        message = Message(body=b"" if body == "-" else binascii.unhexlify(body), inferred=True)
        if content_type != "-":
            message.content_type = content_type
        message.properties = dict(one.split("=", 1) for one in properties)
        return self.deliver(address, message)

    def send_value(self, address, kind):
        return self.deliver(address, Message(body=VALUES[kind]))

    def deliver(self, address, message):
        if address not in self.senders:
            self.senders[address] = self.connection.create_sender(address)
        try:
            return OUTCOMES[self.senders[address].send(message).remote_state]
        except SendException as refused:
            return OUTCOMES[refused.state]

    def receive(self, address, credit, mode, group):
        options = [AtMostOnce() if mode == "settled" else AtLeastOnce()]
        if mode == "copy":
            options.append(Copy())
        if group != "-":
            options.append(Filter({symbol("x-ks-group"): group}))
        self.receiver = self.connection.create_receiver(address, credit=int(credit), options=options)

    def next(self):
        message = self.receiver.receive(timeout=WAIT_S)
        body = bytes(message.body) if not isinstance(message.body, str) else message.body.encode()
        properties = ["%s=%s" % pair for pair in (message.properties or {}).items()]
        head = [binascii.hexlify(body).decode() or "-", message.content_type or "-", str(message.delivery_count)]
        return " ".join(head + properties)

    def next_value(self):
        body = self.receiver.receive(timeout=WAIT_S).body
        return next((kind for kind, value in VALUES.items() if value == body), "other:%r" % body)

    def settle(self, outcome):
        if outcome == "accepted":
            self.receiver.accept()
        elif outcome == "rejected":
            self.receiver.reject()
        elif outcome == "released":
            self.receiver.release(delivered=False)
        elif outcome == "modified":
            delivery = self.receiver.fetcher.unsettled.popleft()
            delivery.local.failed = True
            delivery.update(Disposition.MODIFIED)
            delivery.settle()
        # The outcome is sent by the next turns of the library's loop.
        container = self.connection.container
        patience, container.timeout = container.timeout, 0.01
        for _ in range(3):
            container.process()
        container.timeout = patience

    def same(self, address):
        """Attaches two links of one name, one in each direction, and then one of them again."""
        for body in (b"first", b"second"):
            sender = self.connection.create_sender(address, name="same")
            receiver = self.connection.create_receiver(address, credit=1, name="same")
            sender.send(Message(body=body, inferred=True))
            assert bytes(receiver.receive(timeout=WAIT_S).body) == body
            receiver.accept()
            sender.close()
            receiver.close()

    def refused(self, address):
        try:
            self.connection.create_receiver(address, credit=1)
        except LinkDetached as refused:
            return refused.condition
        return "none"

    def lost(self):
        try:
            self.connection.wait(lambda: False, msg="Losing the connection")
        except ConnectionException as reason:
            return reason

    def close(self):
        self.connection.close()


driver = Driver()
for line in sys.stdin:
    verb, *words = line.split()
    try:
        answer = "ok %s" % (getattr(driver, verb.replace("-", "_"))(*words) or "")
    except Exception as error:  # whatever it is, the test shall show it
        answer = "error %s %s" % (type(error).__name__, str(error).replace("\n", " "))
    print(answer.rstrip(), flush=True)

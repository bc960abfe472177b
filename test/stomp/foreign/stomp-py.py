"""Drives Debian's python3-stomp: one JSON request per line in, one JSON reply per line out."""

import base64
import json
import queue
import sys

import stomp

CONNECTIONS = {"1.0": stomp.Connection10, "1.1": stomp.Connection11, "1.2": stomp.Connection12}
WAIT_S = 30


class Listener(stomp.ConnectionListener):
    def __init__(self):
        self.messages = queue.Queue()
        self.receipts = queue.Queue()
        self.errors = queue.Queue()
        self.disconnects = queue.Queue()

    def on_message(self, frame):
        self.messages.put(frame)

    def on_receipt(self, frame):
        self.receipts.put(frame.headers["receipt-id"])

    def on_error(self, frame):
        self.errors.put(frame.headers["message"])

    def on_disconnected(self):
        self.disconnects.put(True)


class Driver:
    def __init__(self):
        self.listener = Listener()
        self.subscriptions = []
        self.receipts = 0

    def connect(self, request):
        self.version = request["version"]
        self.port = request["port"]
        self.options = {"auto_decode": False, "reconnect_attempts_max": 1}
        if self.version != "1.0":
            self.options["heartbeats"] = tuple(request["beats"])
        self.login = {"username": request["login"], "passcode": request["passcode"], "wait": True}
        try:
            self.open()
        except stomp.exception.ConnectFailedException:
            raise Exception(self.listener.errors.get(timeout=WAIT_S)) from None

    def open(self):
        self.connection = CONNECTIONS[self.version]([("127.0.0.1", self.port)], **self.options)
        self.connection.set_listener("driver", self.listener)
        self.connection.connect(**self.login)

    def receipt(self):
        self.receipts += 1
        return "r%d" % self.receipts

    def await_receipt(self, receipt):
        got = self.listener.receipts.get(timeout=WAIT_S)
        if got != receipt:
            raise Exception("receipt %s instead of %s" % (got, receipt))

    def send(self, request):
        receipt = self.receipt()
        headers = dict(request["headers"], receipt=receipt)
        self.connection.send(request["destination"], base64.b64decode(request["body"]), **headers)
        self.await_receipt(receipt)

    def subscribe(self, request):
        self.subscriptions.append(request)
        self.subscribe_again(request)

    def subscribe_again(self, request):
        receipt = self.receipt()
        headers = dict(request["headers"], receipt=receipt)
        self.connection.subscribe(request["destination"], id=request["id"], ack=request["ack"], headers=headers)
        self.await_receipt(receipt)

    def next(self, _request):
        frame = self.listener.messages.get(timeout=WAIT_S)
        body = frame.body if isinstance(frame.body, bytes) else frame.body.encode()
        return {"message": {"headers": frame.headers, "body": base64.b64encode(body).decode()}}

    def ack(self, request):
        of, transaction, receipt = request["of"], request["transaction"], self.receipt()
        if self.version == "1.2":
            self.connection.ack(of["ack"], transaction=transaction, receipt=receipt)
        elif self.version == "1.1":
            self.connection.ack(of["message-id"], of["subscription"], transaction=transaction, receipt=receipt)
        else:
            self.connection.ack(of["message-id"], transaction=transaction, receipt=receipt)
        self.await_receipt(receipt)

    def nack(self, request):
        of, receipt = request["of"], self.receipt()
        if self.version == "1.2":
            self.connection.nack(of["ack"], receipt=receipt, **request["headers"])
        else:
            self.connection.nack(of["message-id"], of["subscription"], receipt=receipt, **request["headers"])
        self.await_receipt(receipt)

    def begin(self, request):
        self.connection.begin(transaction=request["transaction"])

    def commit(self, request):
        receipt = self.receipt()
        self.connection.commit(transaction=request["transaction"], receipt=receipt)
        self.await_receipt(receipt)

    def abort(self, request):
        receipt = self.receipt()
        self.connection.abort(transaction=request["transaction"], receipt=receipt)
        self.await_receipt(receipt)

    def recover(self, _request):
        self.listener.disconnects.get(timeout=WAIT_S)
        # The library reports the disconnection before its threads have ended. They would end the next connection of
        # the same object, so a new object with a new listener is used.
        self.listener = Listener()
        self.open()
        for request in self.subscriptions:
            self.subscribe_again(request)

    def disconnect(self, _request):
        self.connection.disconnect()
        self.listener.disconnects.get(timeout=WAIT_S)


driver = Driver()
for line in sys.stdin:
    request = json.loads(line)
    try:
        answer = getattr(driver, request.pop("verb"))(request) or {}
    except Exception as error:  # reported to the test, which fails with it
        answer = {"error": "%s %s" % (type(error).__name__, error)}
    print(json.dumps(answer), flush=True)

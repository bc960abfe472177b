<?php
// Drives Debian's php-stomp: one JSON request per line in, one JSON reply per line out.

const WAIT_S = 30;

class Driver
{
    private $stomp;
    private $version;
    private $options;
    private $receipts = 0;
    private $subscriptions = [];

    public function connect($request)
    {
        $this->options = $request;
        $this->version = $request['version'];
        $this->open();
    }

    private function open()
    {
        $headers = $this->version === '1.0' ? [] : ['accept-version' => $this->version, 'host' => 'localhost'];
        ['port' => $port, 'login' => $login, 'passcode' => $passcode] = $this->options;
        $this->stomp = new Stomp("tcp://127.0.0.1:$port", $login, $passcode, $headers);
        $this->stomp->setReadTimeout(WAIT_S);
    }

    // The extension itself waits for the receipt, and keeps messages that arrive before it.
    private function asked($headers = [])
    {
        return array_merge($headers, ['receipt' => 'r' . ++$this->receipts]);
    }

    private function done($isDone)
    {
        if (!$isDone) {
            throw new Exception($this->stomp->error() ?: 'no receipt came');
        }
    }

    public function send($request)
    {
        $body = base64_decode($request['body']);
        $headers = array_merge((array) $request['headers'], ['content-length' => strlen($body)]);
        if (!isset($headers['transaction'])) {
            $headers = $this->asked($headers);
        }
        $this->done($this->stomp->send($request['destination'], $body, $headers));
    }

    public function subscribe($request)
    {
        $this->subscriptions[] = $request;
        $this->subscribeAgain($request);
    }

    private function subscribeAgain($request)
    {
        $headers = array_merge((array) $request['headers'], ['id' => $request['id'], 'ack' => $request['ack']]);
        $this->done($this->stomp->subscribe($request['destination'], $this->asked($headers)));
    }

    public function next()
    {
        $frame = $this->stomp->readFrame();
        if ($frame === false) {
            throw new Exception($this->stomp->error() ?: 'no frame came');
        }
        return ['message' => ['headers' => $frame->headers, 'body' => base64_encode($frame->body ?? '')]];
    }

    // The headers that name a message, in addition to the message-id that the extension sends.
    private function named($of)
    {
        if ($this->version === '1.2') {
            return ['id' => $of['ack']];
        }
        return $this->version === '1.1' ? ['subscription' => $of['subscription']] : [];
    }

    public function ack($request)
    {
        $headers = $this->named($request['of']);
        if (isset($request['transaction'])) {
            $headers['transaction'] = $request['transaction'];
        }
        $this->done($this->stomp->ack($request['of']['message-id'], $this->asked($headers)));
    }

    public function nack($request)
    {
        $headers = array_merge($this->named($request['of']), $request['headers']);
        $this->done($this->stomp->nack($request['of']['message-id'], $this->asked($headers)));
    }

    public function begin($request)
    {
        $this->done($this->stomp->begin($request['transaction'], $this->asked()));
    }

    public function commit($request)
    {
        $this->done($this->stomp->commit($request['transaction'], $this->asked()));
    }

    public function abort($request)
    {
        $this->done($this->stomp->abort($request['transaction'], $this->asked()));
    }

    // The extension does not connect again by itself.
    public function recover()
    {
        $this->open();
        foreach ($this->subscriptions as $request) {
            $this->subscribeAgain($request);
        }
    }

    public function disconnect()
    {
        unset($this->stomp);
    }
}

$driver = new Driver();
while (($line = fgets(STDIN)) !== false) {
    $request = json_decode($line, true);
    try {
        $answer = $driver->{$request['verb']}($request) ?? new stdClass();
    } catch (Throwable $error) {
        $answer = ['error' => get_class($error) . ' ' . $error->getMessage()];
    }
    echo json_encode($answer), "\n";
}

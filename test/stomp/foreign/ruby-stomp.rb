# Drives Debian's ruby-stomp: one JSON request per line in, one JSON reply per line out.

require 'base64'
require 'json'
require 'stomp'
require 'timeout'

WAIT_S = 30
$stdout.sync = true

# The tests cut connections on purpose: do not print what the library logs about it.
class Quiet < Stomp::NullLogger
  def on_miscerr(_parameters, _message)
    true
  end
end

# A reliable connection, which connects and subscribes again by itself.
class Driver
  def initialize
    @receipts = 0
    @kept = []
  end

  def connect(request)
    @version = request['version']
    headers = @version == '1.0' ? {} : { 'accept-version' => @version, 'host' => 'localhost' }
    host = {
      login: request['login'], passcode: request['passcode'], host: '127.0.0.1', port: request['port'], ssl: false
    }
    # Try the first login once, so that a rejection is reported: a reliable connection would repeat it.
    Stomp::Connection.new(hosts: [host], reliable: false, connect_headers: headers).tap do |probe|
      frame = probe.connection_frame
      raise frame.headers['message'] if frame.command == 'ERROR'
      probe.disconnect
    end
    @connection = Stomp::Connection.new(
      hosts: [host], reliable: true, connect_headers: headers, logger: Quiet.new,
      initial_reconnect_delay: 0.05, max_reconnect_delay: 0.2, autoflush: true
    )
    {}
  end

  def frame
    frame = Timeout.timeout(WAIT_S) { @connection.receive }
    raise 'no frame came' if frame.nil?
    raise frame.headers['message'] if frame.command == 'ERROR'

    frame
  end

  def receipt
    @receipts += 1
    "r#{@receipts}"
  end

  # Calls the block with a receipt header and waits for that receipt; keeps messages that arrive before it.
  def asked
    id = receipt
    yield({ 'receipt' => id })
    loop do
      got = frame
      return {} if got.command == 'RECEIPT' && got.headers['receipt-id'] == id

      @kept << got if got.command == 'MESSAGE'
    end
  end

  def send_message(request)
    body = Base64.decode64(request['body'])
    asked { |more| @connection.publish(request['destination'], body, request['headers'].merge(more)) }
  end

  def subscribe(request)
    headers = request['headers'].merge('id' => request['id'], 'ack' => request['ack'])
    asked { |more| @connection.subscribe(request['destination'], headers.merge(more), request['id']) }
  end

  def next(_request)
    got = @kept.shift || frame
    got = frame while got.command != 'MESSAGE'
    # The library returns a list for a repeated header.
    headers = got.headers.transform_values { |value| value.is_a?(Array) ? value.first : value }
    { message: { headers: headers, body: Base64.strict_encode64(got.body) } }
  end

  # The id of a message, and the headers that ACK and NACK need with it.
  def named(of)
    return [of['ack'], {}] if @version == '1.2'

    [of['message-id'], @version == '1.1' ? { 'subscription' => of['subscription'] } : {}]
  end

  def ack(request)
    id, headers = named(request['of'])
    headers = headers.merge('transaction' => request['transaction']) if request['transaction']
    asked { |more| @connection.ack(id, headers.merge(more)) }
  end

  def nack(request)
    id, headers = named(request['of'])
    asked { |more| @connection.nack(id, headers.merge(request['headers']).merge(more)) }
  end

  def begin(request)
    asked { |more| @connection.begin(request['transaction'], more) }
  end

  def commit(request)
    asked { |more| @connection.commit(request['transaction'], more) }
  end

  def abort(request)
    asked { |more| @connection.abort(request['transaction'], more) }
  end

  # The library notices the lost connection when it reads, reconnects, and returns the first frame of the new one.
  def recover(_request)
    got = frame
    @kept << got if got.command == 'MESSAGE'
    {}
  end

  def disconnect(_request)
    @connection.disconnect
    {}
  end
end

driver = Driver.new
while (line = $stdin.gets)
  request = JSON.parse(line)
  verb = request['verb'] == 'send' ? 'send_message' : request['verb']
  answer =
    begin
      driver.public_send(verb, request)
    rescue StandardError => e
      { error: "#{e.class} #{e.message}" }
    end
  puts JSON.generate(answer)
end

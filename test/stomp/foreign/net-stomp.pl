# Drives Debian's libnet-stomp-perl: one JSON request per line in, one JSON reply per line out.
use strict;
use warnings;
use JSON::PP;
use MIME::Base64;
use Net::Stomp;

$| = 1;
my $WAIT_S = 30;
my $json = JSON::PP->new->utf8;
my ($stomp, $version, $receipts, @kept) = (undef, undef, 0);

# The next frame, of any command but ERROR.
sub frame {
    my $frame = $stomp->receive_frame({ timeout => $WAIT_S });
    die "no frame came\n" unless $frame;
    die $frame->headers->{message} . "\n" if $frame->command eq 'ERROR';
    return $frame;
}

# Sends a frame with a receipt and waits for it; keeps messages that arrive before it.
sub asked {
    my ($command, $headers, $body) = @_;
    my $receipt = 'r' . ++$receipts;
    $stomp->send_frame(Net::Stomp::Frame->new({
        command => $command,
        headers => { %$headers, receipt => $receipt },
        body => $body,
    }));
    await_receipt($receipt);
}

sub await_receipt {
    my ($receipt) = @_;
    while (1) {
        my $frame = frame();
        if ($frame->command eq 'RECEIPT') {
            return if $frame->headers->{'receipt-id'} eq $receipt;
            next;
        }
        push @kept, $frame;
    }
}

# The headers that name a message in the session's version.
sub named {
    my ($of) = @_;
    return { id => $of->{ack} } if $version eq '1.2';
    return { 'message-id' => $of->{'message-id'}, subscription => $of->{subscription} } if $version eq '1.1';
    return { 'message-id' => $of->{'message-id'} };
}

my %verbs = (
    connect => sub {
        my ($request) = @_;
        $version = $request->{version};
        $stomp = Net::Stomp->new({ hostname => '127.0.0.1', port => $request->{port} });
        my $headers = { login => $request->{login}, passcode => $request->{passcode} };
        $headers = { %$headers, 'accept-version' => $version, host => 'localhost' } unless $version eq '1.0';
        my $frame = $stomp->connect($headers);
        die(($frame ? $frame->headers->{message} : 'no answer') . "\n")
            unless $frame && $frame->command eq 'CONNECTED';
        return {};
    },
    send => sub {
        my ($request) = @_;
        my $headers = { %{ $request->{headers} }, destination => $request->{destination}, bytes_message => 1 };
        my $receipt = 'r' . ++$receipts;
        $stomp->send({ %$headers, receipt => $receipt, body => decode_base64($request->{body}) });
        await_receipt($receipt);
        return {};
    },
    subscribe => sub {
        my ($request) = @_;
        my $receipt = 'r' . ++$receipts;
        $stomp->subscribe({
            destination => $request->{destination},
            id => $request->{id},
            ack => $request->{ack},
            receipt => $receipt,
            %{ $request->{headers} },
        });
        await_receipt($receipt);
        return {};
    },
    next => sub {
        my $frame = shift(@kept) || frame();
        $frame = frame() while $frame->command ne 'MESSAGE';
        return { message => { headers => $frame->headers, body => encode_base64($frame->body // '', '') } };
    },
    ack => sub {
        my ($request) = @_;
        my $headers = named($request->{of});
        $headers->{transaction} = $request->{transaction} if defined $request->{transaction};
        if ($version eq '1.0') {
            my $receipt = 'r' . ++$receipts;
            my $frame = Net::Stomp::Frame->new({ command => 'MESSAGE', headers => $request->{of} });
            $stomp->ack({ frame => $frame, receipt => $receipt, %$headers });
            await_receipt($receipt);
        }
        else {
            asked('ACK', $headers);
        }
        return {};
    },
    nack => sub {
        my ($request) = @_;
        asked('NACK', { %{ named($request->{of}) }, %{ $request->{headers} } });
        return {};
    },
    begin => sub { asked('BEGIN', { transaction => $_[0]{transaction} }); return {} },
    commit => sub { asked('COMMIT', { transaction => $_[0]{transaction} }); return {} },
    abort => sub { asked('ABORT', { transaction => $_[0]{transaction} }); return {} },
    # The library reconnects and resubscribes by itself when it notices that the connection is lost.
    recover => sub {
        my $frame = $stomp->receive_frame({ timeout => 5 });
        push @kept, $frame if $frame && $frame->command eq 'MESSAGE';
        return {};
    },
    disconnect => sub { $stomp->disconnect; return {} },
);

while (my $line = <STDIN>) {
    my $request = $json->decode($line);
    my $answer = eval { $verbs{ $request->{verb} }->($request) };
    $answer = { error => "$@" } if $@;
    print $json->encode($answer), "\n";
}

import type { ForeignLibrary } from './client.ts';
import { drivenLibrary } from './driven.ts';
import { STOMPIT } from './stompit.ts';
import { STOMPJS, STOMPJS_OVER_WEBSOCKET } from './stompjs.ts';

const STOMP_PY = drivenLibrary({
  name: 'stomp.py',
  versions: ['1.0', '1.1', '1.2'],
  beats: true,
  debianPackages: ['python3-stomp'],
  // Debian's modules work with Debian's Python only; another one may come first in PATH.
  interpreter: '/usr/bin/python3',
  script: './stomp-py.py',
});

const NET_STOMP = drivenLibrary({
  name: 'Net::Stomp',
  versions: ['1.0', '1.1', '1.2'],
  beats: false,
  debianPackages: ['libnet-stomp-perl'],
  interpreter: '/usr/bin/perl',
  script: './net-stomp.pl',
});

const PHP_STOMP = drivenLibrary({
  name: 'php-stomp',
  versions: ['1.0', '1.1', '1.2'],
  beats: false,
  debianPackages: ['php-cli', 'php-stomp'],
  interpreter: '/usr/bin/php',
  script: './php-stomp.php',
});

const RUBY_STOMP = drivenLibrary({
  name: 'ruby-stomp',
  versions: ['1.0', '1.1', '1.2'],
  beats: false,
  debianPackages: ['ruby-stomp'],
  // Debian's gems work with Debian's Ruby only.
  interpreter: '/usr/bin/ruby',
  script: './ruby-stomp.rb',
});

/** Every tested library; none was adapted to this server. */
export const LIBRARIES: readonly ForeignLibrary[] = [
  STOMPJS,
  STOMPJS_OVER_WEBSOCKET,
  STOMPIT,
  STOMP_PY,
  NET_STOMP,
  PHP_STOMP,
  RUBY_STOMP,
];

import type { ForeignLibrary } from './client.ts';
import { drivenLibrary } from './driven.ts';
import { STOMPIT } from './stompit.ts';
import { STOMPJS } from './stompjs.ts';

const STOMP_PY = drivenLibrary({
  name: 'stomp.py',
  versions: ['1.0', '1.1', '1.2'],
  beats: true,
  debianPackage: 'python3-stomp',
  // Debian's modules belong to Debian's Python; another one may come first in PATH.
  interpreter: '/usr/bin/python3',
  script: './stomp-py.py',
});

const NET_STOMP = drivenLibrary({
  name: 'Net::Stomp',
  versions: ['1.0', '1.1', '1.2'],
  beats: false,
  debianPackage: 'libnet-stomp-perl',
  interpreter: '/usr/bin/perl',
  script: './net-stomp.pl',
});

/** Every library that is tried; none of them knows this server. */
export const LIBRARIES: readonly ForeignLibrary[] = [STOMPJS, STOMPIT, STOMP_PY, NET_STOMP];

import type { Channel } from './channels.ts';

/** What both sides have said so far, as far as later frames are checked against it. */
export class ConnectionState {
  isPeerOpen = false;
  isPeerClosed = false;
  /** rhea wrote the protocol header, `open`, `close`. */
  isHeaderSent = false;
  isOpenSent = false;
  isCloseSent = false;
  /** Sessions that the peer keeps at most. */
  peerChannels = 0;
  /** By the peer's channel numbers, and by this side's. */
  readonly channels: (Channel | undefined)[] = [];
  readonly ownChannels: (Channel | undefined)[] = [];
  channelCount = 0;
  /** Of all deliveries that have begun and not ended: bytes they keep at most. */
  begunCost = 0;
}

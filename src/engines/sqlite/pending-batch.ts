import type { QuaysideError } from '../../model/errors.ts';
import { type MessageReader, MessageWriter } from './message.ts';

/** Reads one call's answer and settles its promise. */
export interface PendingCall {
  answered(reply: MessageReader): void;
  failed(error: QuaysideError): void;
  /** Whether the call could have changed something: decides what its caller is told if nobody knows. */
  readonly changes: boolean;
}

/** A batch stops growing at these marks, so that one message stays of a handy size. */
const MOST_BYTES = 8 * 1024 * 1024;
const MOST_VALUES = 32 * 1024;

/** Numbers of one call in the table. */
const CALL_FIELDS = 4;

/** Calls that will travel together. */
export class PendingBatch {
  readonly writer = new MessageWriter();
  readonly calls: PendingCall[] = [];
  /** Operation, value, byte, large body: four numbers a call, as the worker reads them. */
  readonly table: number[] = [];
  /** Its calls name no handle below this one. */
  readonly firstHandle: number;

  constructor(firstHandle: number) {
    this.firstHandle = firstHandle;
  }

  get isFull(): boolean {
    return this.writer.byteLength >= MOST_BYTES || this.writer.valueCount >= MOST_VALUES;
  }

  begin(operation: number): MessageWriter {
    this.dropUnfinished();
    const { value, byte, large } = this.writer.position();
    this.table.push(operation, value, byte, large);
    return this.writer;
  }

  /**
   * Forgets a call whose arguments threw while they were written, so that it has no pending call. Sent, it
   * would shift every answer behind it to the wrong caller.
   */
  dropUnfinished(): void {
    const finished = this.calls.length * CALL_FIELDS;
    if (this.table.length === finished) return;
    const [, value = 0, byte = 0, large = 0] = this.table.splice(finished);
    this.writer.rewind({ value, byte, large });
  }
}

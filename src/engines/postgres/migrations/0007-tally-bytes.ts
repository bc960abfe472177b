/**
 * `tally.bytes`: changes of the bytes of content that a queue's lane, or under the negative number of a stream its
 * elements, hold. What is stored already is counted once, while nothing else changes it.
 */
export const TALLY_BYTES = `
LOCK TABLE delivery, element, tally IN EXCLUSIVE MODE;
ALTER TABLE tally ADD COLUMN bytes bigint NOT NULL DEFAULT 0;
INSERT INTO tally (lane, step, waiting, reserved, bytes)
  SELECT lane, 0, 0, 0, sum(bytes) FROM delivery WHERE head IS NOT NULL GROUP BY lane
  UNION ALL SELECT -queue, 0, 0, 0, sum(octet_length(head) + octet_length(body)) FROM element GROUP BY queue;
`;

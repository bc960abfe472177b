/**
 * How queues, and groups of streams, lose their numbers although nodes remember numbers and share no lock:
 * - a node uses a number for at most `REMEMBERED_MS`, and then asks for it again;
 * - a node that uses a queue, or asks for a group, clears the mark of idleness before it reads the number; one that asks
 *   for all groups of a queue clears it from those that hold something;
 * - a row that was marked longer than `HIDDEN_MS` ago is not found in any other way;
 * - one that was marked for longer still, and holds nothing, is deleted.
 *
 * So when a row is deleted, every node that had its number has forgotten it for some minutes, which is far longer
 * than any statement runs. All moments are the database's. A group is deleted `FORGOTTEN_MS` after its mark. Lanes of default
 * groups go with their queue only.
 *
 * A queue goes in two steps. `UNUSED_MS` after its mark it is forgotten: no longer known, so it is not listed, and its mark starts
 * again. As long after that its number is deleted. So a clock that is set forward by a day cannot delete a number that a node
 * uses; an element that still arrives makes the queue known again at the next look. Numbers of dead-letter queues are not
 * deleted: elements go there by numbers that are remembered for as long as the connection lasts.
 */
export const REMEMBERED_MS = 5 * 60_000;
export const HIDDEN_MS = 8 * 60_000;
export const FORGOTTEN_MS = 15 * 60_000;
export const UNUSED_MS = 24 * 3_600_000;

/**
 * How lanes that hold nothing go, with nodes that remember their numbers and no lock between them:
 * - a node uses a number of a stream for at most `REMEMBERED_MS`, and then asks for it again;
 * - whoever asks for a group by name takes the mark of idleness from its lane;
 * - a lane that was marked longer than `HIDDEN_MS` ago is found in no other way;
 * - one that was marked `FORGOTTEN_MS` ago, and still holds nothing, is deleted.
 *
 * So when a lane is deleted, every node that had its number has forgotten it for some minutes, which is far longer
 * than any statement runs. All moments are the database's. Lanes of default groups are never marked: dead letters go
 * there by numbers that are remembered for as long as the connection lasts.
 */
export const REMEMBERED_MS = 5 * 60_000;
export const HIDDEN_MS = 8 * 60_000;
export const FORGOTTEN_MS = 15 * 60_000;

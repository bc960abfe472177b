/**
 * - `secret`: a token has 128 bits, the 48 of `token` and these; null for reservations of the versions before.
 * - `owner`: the user of the last reservation (`model/owner.ts`); null for nobody.
 */
export const OWNED_RESERVATIONS = 'ALTER TABLE delivery ADD COLUMN secret bytea, ADD COLUMN owner bigint';

/** The fingerprint of the content that came with a dedup key; null for keys of the versions before. */
export const FINGERPRINTS = 'ALTER TABLE dedup ADD COLUMN fingerprint text';

/**
 * - `id_text`: an element's id as clients know it, see `ids.ts`.
 * - `dead_head` with five arguments: as the one with four, and names the first id of the element.
 */
export const ORIGIN_IDS = `
CREATE FUNCTION id_text(tag text, seq bigint) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  alphabet constant text := '0123456789abcdefghijklmnopqrstuvwxyz';
  digits text := '';
  rest bigint := seq;
BEGIN
  WHILE rest > 0 LOOP
    digits := substr(alphabet, (rest % 36)::int + 1, 1) || digits;
    rest := rest / 36;
  END LOOP;
  RETURN tag || substr(alphabet, length(digits) + 1, 1) || digits;
END
$$;

CREATE FUNCTION dead_head(head text, from_queue text, at bigint, tries int, id text) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
  SELECT json_agg(x.v ORDER BY x.i)::text FROM (
    WITH e AS (
      SELECT v, i, CASE WHEN i < 3 THEN '' WHEN i % 2 = 1 THEN v::text ELSE lag(v::text) OVER (ORDER BY i) END AS name
      FROM json_array_elements(head::json) WITH ORDINALITY AS a(v, i)
    )
    SELECT e.v, e.i FROM e WHERE e.name NOT IN ('"x-dl-from-queue"', '"x-dl-at"', '"x-dl-tries"')
    UNION ALL
    SELECT to_json(n.v), 1000000 + n.i FROM unnest(ARRAY[
      'x-dl-from-queue', convert_from(convert_to(from_queue, 'UTF8'), 'LATIN1'),
      'x-dl-at', to_char(to_timestamp(at / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
      'x-dl-tries', tries::text
    ]) WITH ORDINALITY AS n(v, i)
    UNION ALL
    SELECT to_json(n.v), 2000000 + n.i FROM unnest(ARRAY['x-ks-origin-id', id]) WITH ORDINALITY AS n(v, i)
    WHERE NOT EXISTS (SELECT FROM e WHERE e.name = '"x-ks-origin-id"')
  ) x
$$;
`;

--
-- PostgreSQL database dump
--


-- Dumped from database version 15.18 (Debian 15.18-0+deb12u1)
-- Dumped by pg_dump version 15.18 (Debian 15.18-0+deb12u1)

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: upgrades; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA upgrades;


--
-- Name: now_ms(); Type: FUNCTION; Schema: upgrades; Owner: -
--

CREATE FUNCTION upgrades.now_ms() RETURNS bigint
    LANGUAGE sql PARALLEL SAFE
    AS $$ SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;


--
-- Name: subscription_id(text, text, text); Type: FUNCTION; Schema: upgrades; Owner: -
--

CREATE FUNCTION upgrades.subscription_id(ns text, name text, grp text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT ('x' || encode(substr(sha256(convert_to(
  octet_length(ns) || ':' || octet_length(name) || ':' || ns || name || grp, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint
  & 9223372036854775807 $$;


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: counter; Type: TABLE; Schema: upgrades; Owner: -
--

CREATE TABLE upgrades.counter (
    id bigint NOT NULL,
    subscription bigint NOT NULL,
    step bigint NOT NULL,
    bytes bigint NOT NULL,
    waiting integer NOT NULL,
    reserved integer NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0', vacuum_truncate=off);


--
-- Name: counter_id_seq; Type: SEQUENCE; Schema: upgrades; Owner: -
--

ALTER TABLE upgrades.counter ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME upgrades.counter_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: dedup; Type: TABLE; Schema: upgrades; Owner: -
--

CREATE TABLE upgrades.dedup (
    queue bigint NOT NULL,
    seq bigint NOT NULL,
    seen_at bigint NOT NULL,
    key bytea NOT NULL,
    fingerprint text
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0', vacuum_truncate=off);


--
-- Name: definition; Type: TABLE; Schema: upgrades; Owner: -
--

CREATE TABLE upgrades.definition (
    kind text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL,
    version bigint NOT NULL
);


--
-- Name: definition_version; Type: SEQUENCE; Schema: upgrades; Owner: -
--

CREATE SEQUENCE upgrades.definition_version
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: delivery; Type: TABLE; Schema: upgrades; Owner: -
--

CREATE TABLE upgrades.delivery (
    seq bigint NOT NULL,
    due_at bigint NOT NULL,
    lease_until bigint,
    token bigint,
    owner bigint,
    inserted_at bigint NOT NULL,
    expires_at bigint,
    subscription bigint NOT NULL,
    tries integer NOT NULL,
    bytes integer NOT NULL,
    secret bytea,
    reserved_at bigint,
    holder text,
    reason text,
    head text,
    body bytea
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_insert_scale_factor='0.2', autovacuum_vacuum_cost_delay='0', vacuum_truncate=off, toast.autovacuum_vacuum_scale_factor='0.05', toast.autovacuum_vacuum_cost_delay='0', toast.vacuum_truncate=off);
ALTER TABLE ONLY upgrades.delivery ALTER COLUMN body SET STORAGE EXTERNAL;


--
-- Name: element; Type: TABLE; Schema: upgrades; Owner: -
--

CREATE TABLE upgrades.element (
    seq bigint NOT NULL,
    queue bigint NOT NULL,
    remaining integer NOT NULL,
    head text NOT NULL,
    body bytea NOT NULL
)
WITH (fillfactor='85', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_cost_delay='0', vacuum_truncate=off, toast.autovacuum_vacuum_scale_factor='0.05', toast.autovacuum_vacuum_cost_delay='0', toast.vacuum_truncate=off);
ALTER TABLE ONLY upgrades.element ALTER COLUMN body SET STORAGE EXTERNAL;


--
-- Name: element_seq; Type: SEQUENCE; Schema: upgrades; Owner: -
--

CREATE SEQUENCE upgrades.element_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: meta; Type: TABLE; Schema: upgrades; Owner: -
--

CREATE TABLE upgrades.meta (
    key text NOT NULL,
    value text NOT NULL
);


--
-- Name: stats; Type: TABLE; Schema: upgrades; Owner: -
--

CREATE TABLE upgrades.stats (
    ns text NOT NULL COLLATE pg_catalog."C",
    queue text NOT NULL COLLATE pg_catalog."C",
    grp text NOT NULL COLLATE pg_catalog."C",
    put bigint NOT NULL,
    get bigint NOT NULL,
    reserve bigint NOT NULL,
    commit bigint NOT NULL,
    rollback bigint NOT NULL,
    deadletter bigint NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.05');


--
-- Name: subscription; Type: TABLE; Schema: upgrades; Owner: -
--

CREATE TABLE upgrades.subscription (
    id bigint NOT NULL,
    queue bigint NOT NULL,
    idle_from bigint,
    ns text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    grp text NOT NULL COLLATE pg_catalog."C",
    max_tries integer,
    dead_queue text,
    retention bigint,
    retry double precision[],
    has_options boolean DEFAULT false NOT NULL
);


--
-- Data for Name: counter; Type: TABLE DATA; Schema: upgrades; Owner: -
--

INSERT INTO upgrades.counter OVERRIDING SYSTEM VALUE VALUES (1, 5309575128692891903, 1712262, 57, 1, 0);
INSERT INTO upgrades.counter OVERRIDING SYSTEM VALUE VALUES (2, 5309575128692891903, 1712262, 0, -1, 1);
INSERT INTO upgrades.counter OVERRIDING SYSTEM VALUE VALUES (3, 3940739071218365214, 1712262, 57, 1, 0);
INSERT INTO upgrades.counter OVERRIDING SYSTEM VALUE VALUES (4, 3940739071218365214, 3912396, 57, 1, 0);
INSERT INTO upgrades.counter OVERRIDING SYSTEM VALUE VALUES (5, 4187056875074700297, 1712262, 57, 1, 0);
INSERT INTO upgrades.counter OVERRIDING SYSTEM VALUE VALUES (6, 4187056875074700297, 1712262, 0, -1, 1);
INSERT INTO upgrades.counter OVERRIDING SYSTEM VALUE VALUES (7, 4187056875074700297, 1712262, -57, 0, -1);
INSERT INTO upgrades.counter OVERRIDING SYSTEM VALUE VALUES (8, 5293743947886762411, 1712262, 105, 1, 0);
INSERT INTO upgrades.counter OVERRIDING SYSTEM VALUE VALUES (9, 8391624848487227664, 1712262, 57, 1, 0);
INSERT INTO upgrades.counter OVERRIDING SYSTEM VALUE VALUES (10, 4031250836374057849, 1712262, 57, 1, 0);
INSERT INTO upgrades.counter OVERRIDING SYSTEM VALUE VALUES (11, 5245373497503596702, 1712262, 0, 1, 0);
INSERT INTO upgrades.counter OVERRIDING SYSTEM VALUE VALUES (12, 4829669148100021520, 1712262, 0, 1, 0);
INSERT INTO upgrades.counter OVERRIDING SYSTEM VALUE VALUES (13, -2737471731505121795, 0, 57, 1, 0);
INSERT INTO upgrades.counter OVERRIDING SYSTEM VALUE VALUES (14, 4829669148100021520, 1712262, 0, -1, 0);


--
-- Data for Name: dedup; Type: TABLE DATA; Schema: upgrades; Owner: -
--



--
-- Data for Name: definition; Type: TABLE DATA; Schema: upgrades; Owner: -
--

INSERT INTO upgrades.definition VALUES ('namespace', 'N', '{"variant":"simple"}', 1);
INSERT INTO upgrades.definition VALUES ('namespace', 'S', '{"variant":"stream"}', 2);
INSERT INTO upgrades.definition VALUES ('queue', '["N","paused"]', '{"paused":true}', 3);
INSERT INTO upgrades.definition VALUES ('queue-options', '["N","tuned"]', '{"lease":77,"maxElements":9}', 4);
INSERT INTO upgrades.definition VALUES ('exchange', 'kept', '{"declaration":{"src":{"ns":"N","queue":"source"},"dst":[{"ns":"N","queue":"copies"}],"consumer":{}},"owner":"test1","stopped":null,"lastError":null}', 5);


--
-- Data for Name: delivery; Type: TABLE DATA; Schema: upgrades; Owner: -
--

INSERT INTO upgrades.delivery VALUES (1, 1795436851764, 2110796851866, 188250240793569, 30026361229719, 1795436851764, NULL, 5309575128692891903, 0, 57, '\xe2c9334dd3b4d253990f', 1795436851866, 'test1
', NULL, '["application/x-kept",null,"trace","Grüße, 0.1.0"]', '\x000102feff');
INSERT INTO upgrades.delivery VALUES (2, 1795436851983, NULL, NULL, NULL, 1795436851983, NULL, 3940739071218365214, 0, 57, NULL, NULL, NULL, NULL, '["application/x-kept",null,"trace","Grüße, 0.1.0"]', '\x000102feff');
INSERT INTO upgrades.delivery VALUES (3, 4102444800000, NULL, NULL, NULL, 1795436852126, NULL, 3940739071218365214, 0, 57, NULL, NULL, NULL, NULL, '["application/x-kept",null,"trace","Grüße, 0.1.0"]', '\x000102feff');
INSERT INTO upgrades.delivery VALUES (5, 1795436852618, NULL, NULL, NULL, 1795436852618, NULL, 5293743947886762411, 0, 105, NULL, NULL, NULL, '"kept reason"', '["application/x-kept",null,"trace","Grüße, 0.1.0"]
["d","failing",1795436852618,1,4,"kept reason"]', '\x000102feff');
INSERT INTO upgrades.delivery VALUES (6, 1795436852743, NULL, NULL, NULL, 1795436852743, NULL, 8391624848487227664, 0, 57, NULL, NULL, NULL, NULL, '["application/x-kept",null,"trace","Grüße, 0.1.0"]', '\x000102feff');
INSERT INTO upgrades.delivery VALUES (7, 1795436853003, NULL, NULL, NULL, 1795436853003, NULL, 4031250836374057849, 0, 57, NULL, NULL, NULL, NULL, '["application/x-kept",null,"trace","Grüße, 0.1.0"]', '\x000102feff');
INSERT INTO upgrades.delivery VALUES (8, 1795436853307, NULL, NULL, NULL, 1795436853307, NULL, 5245373497503596702, 0, 57, NULL, NULL, NULL, NULL, NULL, NULL);


--
-- Data for Name: element; Type: TABLE DATA; Schema: upgrades; Owner: -
--

INSERT INTO upgrades.element VALUES (8, 2737471731505121795, 1, '["application/x-kept",null,"trace","Grüße, 0.1.0"]', '\x000102feff');


--
-- Data for Name: meta; Type: TABLE DATA; Schema: upgrades; Owner: -
--

INSERT INTO upgrades.meta VALUES ('version', '2');
INSERT INTO upgrades.meta VALUES ('tag', 'kjaf');


--
-- Data for Name: stats; Type: TABLE DATA; Schema: upgrades; Owner: -
--

INSERT INTO upgrades.stats VALUES ('N', '__deadletter__', '', 1, 0, 0, 0, 0, 0);
INSERT INTO upgrades.stats VALUES ('N', 'failing', '', 1, 0, 1, 0, 1, 1);
INSERT INTO upgrades.stats VALUES ('N', 'orders', '', 2, 0, 0, 0, 0, 0);
INSERT INTO upgrades.stats VALUES ('N', 'taken', '', 1, 0, 1, 0, 0, 0);
INSERT INTO upgrades.stats VALUES ('N', 'paused', '', 1, 0, 0, 0, 0, 0);
INSERT INTO upgrades.stats VALUES ('N', 'tuned', '', 1, 0, 0, 0, 0, 0);
INSERT INTO upgrades.stats VALUES ('S', 'fan', '', 1, 0, 0, 0, 0, 0);
INSERT INTO upgrades.stats VALUES ('S', 'fan', 'a', 1, 1, 0, 0, 0, 0);
INSERT INTO upgrades.stats VALUES ('S', 'fan', 'b', 1, 0, 0, 0, 0, 0);


--
-- Data for Name: subscription; Type: TABLE DATA; Schema: upgrades; Owner: -
--

INSERT INTO upgrades.subscription VALUES (5309575128692891903, 5309575128692891903, NULL, 'N', 'taken', '', NULL, NULL, NULL, NULL, false);
INSERT INTO upgrades.subscription VALUES (3940739071218365214, 3940739071218365214, NULL, 'N', 'orders', '', NULL, NULL, NULL, NULL, false);
INSERT INTO upgrades.subscription VALUES (4187056875074700297, 4187056875074700297, NULL, 'N', 'failing', '', NULL, NULL, NULL, NULL, false);
INSERT INTO upgrades.subscription VALUES (5293743947886762411, 5293743947886762411, NULL, 'N', '__deadletter__', '', NULL, NULL, NULL, NULL, false);
INSERT INTO upgrades.subscription VALUES (8391624848487227664, 8391624848487227664, NULL, 'N', 'paused', '', NULL, NULL, NULL, NULL, false);
INSERT INTO upgrades.subscription VALUES (4031250836374057849, 4031250836374057849, NULL, 'N', 'tuned', '', NULL, NULL, NULL, NULL, true);
INSERT INTO upgrades.subscription VALUES (2737471731505121795, 2737471731505121795, NULL, 'S', 'fan', '', NULL, NULL, NULL, NULL, false);
INSERT INTO upgrades.subscription VALUES (4829669148100021520, 2737471731505121795, NULL, 'S', 'fan', 'a', NULL, NULL, NULL, NULL, false);
INSERT INTO upgrades.subscription VALUES (5245373497503596702, 2737471731505121795, NULL, 'S', 'fan', 'b', NULL, NULL, NULL, NULL, false);
INSERT INTO upgrades.subscription VALUES (8889642250317967306, 8889642250317967306, NULL, 'N', 'source', '', NULL, NULL, NULL, NULL, false);


--
-- Name: counter_id_seq; Type: SEQUENCE SET; Schema: upgrades; Owner: -
--

SELECT pg_catalog.setval('upgrades.counter_id_seq', 14, true);


--
-- Name: definition_version; Type: SEQUENCE SET; Schema: upgrades; Owner: -
--

SELECT pg_catalog.setval('upgrades.definition_version', 5, true);


--
-- Name: element_seq; Type: SEQUENCE SET; Schema: upgrades; Owner: -
--

SELECT pg_catalog.setval('upgrades.element_seq', 8, true);


--
-- Name: dedup dedup_pkey; Type: CONSTRAINT; Schema: upgrades; Owner: -
--

ALTER TABLE ONLY upgrades.dedup
    ADD CONSTRAINT dedup_pkey PRIMARY KEY (queue, key);


--
-- Name: definition definition_pkey; Type: CONSTRAINT; Schema: upgrades; Owner: -
--

ALTER TABLE ONLY upgrades.definition
    ADD CONSTRAINT definition_pkey PRIMARY KEY (kind, key);


--
-- Name: delivery delivery_pkey; Type: CONSTRAINT; Schema: upgrades; Owner: -
--

ALTER TABLE ONLY upgrades.delivery
    ADD CONSTRAINT delivery_pkey PRIMARY KEY (seq, subscription);


--
-- Name: element element_pkey; Type: CONSTRAINT; Schema: upgrades; Owner: -
--

ALTER TABLE ONLY upgrades.element
    ADD CONSTRAINT element_pkey PRIMARY KEY (seq);


--
-- Name: meta meta_pkey; Type: CONSTRAINT; Schema: upgrades; Owner: -
--

ALTER TABLE ONLY upgrades.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (key);


--
-- Name: stats stats_pkey; Type: CONSTRAINT; Schema: upgrades; Owner: -
--

ALTER TABLE ONLY upgrades.stats
    ADD CONSTRAINT stats_pkey PRIMARY KEY (ns, queue, grp);


--
-- Name: subscription subscription_ns_name_grp_key; Type: CONSTRAINT; Schema: upgrades; Owner: -
--

ALTER TABLE ONLY upgrades.subscription
    ADD CONSTRAINT subscription_ns_name_grp_key UNIQUE (ns, name, grp);


--
-- Name: subscription subscription_pkey; Type: CONSTRAINT; Schema: upgrades; Owner: -
--

ALTER TABLE ONLY upgrades.subscription
    ADD CONSTRAINT subscription_pkey PRIMARY KEY (id);


--
-- Name: counter_subscription; Type: INDEX; Schema: upgrades; Owner: -
--

CREATE INDEX counter_subscription ON upgrades.counter USING btree (subscription, id);


--
-- Name: dedup_age; Type: INDEX; Schema: upgrades; Owner: -
--

CREATE INDEX dedup_age ON upgrades.dedup USING btree (seen_at);


--
-- Name: delivery_age; Type: INDEX; Schema: upgrades; Owner: -
--

CREATE INDEX delivery_age ON upgrades.delivery USING btree (subscription, inserted_at) WHERE (head IS NULL);


--
-- Name: delivery_expiring; Type: INDEX; Schema: upgrades; Owner: -
--

CREATE INDEX delivery_expiring ON upgrades.delivery USING btree (expires_at, seq) WHERE ((expires_at IS NOT NULL) AND (lease_until IS NULL));


--
-- Name: delivery_reserved; Type: INDEX; Schema: upgrades; Owner: -
--

CREATE INDEX delivery_reserved ON upgrades.delivery USING btree (lease_until, seq) WHERE (lease_until IS NOT NULL);


--
-- Name: delivery_shared_reserved; Type: INDEX; Schema: upgrades; Owner: -
--

CREATE INDEX delivery_shared_reserved ON upgrades.delivery USING btree (subscription, seq) WHERE ((head IS NULL) AND (lease_until IS NOT NULL));


--
-- Name: delivery_waiting; Type: INDEX; Schema: upgrades; Owner: -
--

CREATE INDEX delivery_waiting ON upgrades.delivery USING btree (subscription, due_at, seq) WHERE (lease_until IS NULL);


--
-- Name: subscription_queue; Type: INDEX; Schema: upgrades; Owner: -
--

CREATE INDEX subscription_queue ON upgrades.subscription USING btree (queue);


--
-- PostgreSQL database dump complete
--



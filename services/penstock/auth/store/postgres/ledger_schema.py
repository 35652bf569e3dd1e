# ruff: noqa: S608  # all parts of the script are constants
"""The part of PostgreSQL's schema with the ledger by day and the totals by hour, as one migration.

The former ledger becomes one partition, so that none of its rows is written again.
"""

_COUNTERS = """
    requests bigint NOT NULL DEFAULT 0, prompt_tokens bigint NOT NULL DEFAULT 0,
    cached_tokens bigint NOT NULL DEFAULT 0, output_tokens bigint NOT NULL DEFAULT 0,
    price_nanos bigint NOT NULL DEFAULT 0, completed bigint NOT NULL DEFAULT 0, cancelled bigint NOT NULL DEFAULT 0,
    shed bigint NOT NULL DEFAULT 0, failed bigint NOT NULL DEFAULT 0, lost bigint NOT NULL DEFAULT 0
"""
_FORMER_LEDGER = """
    DROP VIEW usage;
    ALTER TABLE ledger RENAME TO ledger_former;
    DROP INDEX ledger_lost, ledger_settled;
    ALTER TABLE ledger_former DROP CONSTRAINT ledger_pkey;
    ALTER TABLE ledger_former
        ADD cached_tokens bigint NOT NULL DEFAULT 0, ADD price_nanos bigint NOT NULL DEFAULT 0,
        ADD worker text NOT NULL DEFAULT '', ADD region text NOT NULL DEFAULT '';
"""
_LEDGER = """
    CREATE TABLE ledger (
        reservation_id text COLLATE "C" NOT NULL, request_id text NOT NULL, tenant_id text NOT NULL,
        key_id text NOT NULL, edge_id text NOT NULL, model text NOT NULL, reserved_prompt_tokens bigint NOT NULL,
        reserved_output_tokens bigint NOT NULL, reserved_at double precision NOT NULL,
        expires_at double precision NOT NULL, settled_at double precision NOT NULL, prompt_tokens bigint NOT NULL,
        output_tokens bigint NOT NULL, outcome text NOT NULL, answer_id text NOT NULL, emitted_tokens bigint NOT NULL,
        fingerprint bytea NOT NULL, made_tokens bigint NOT NULL, partition smallint NOT NULL,
        cached_tokens bigint NOT NULL DEFAULT 0, price_nanos bigint NOT NULL DEFAULT 0,
        worker text NOT NULL DEFAULT '', region text NOT NULL DEFAULT '', PRIMARY KEY (reserved_at, reservation_id)
    ) PARTITION BY RANGE (reserved_at);
    CREATE INDEX ledger_lost ON ledger (partition, settled_at, reservation_id) WHERE outcome = 'lost';
    CREATE INDEX ledger_settled ON ledger (partition, settled_at, reservation_id) WHERE outcome <> 'lost';
    CREATE TABLE ledger_default PARTITION OF ledger DEFAULT;
"""
_TOTALS = f"""
    CREATE FUNCTION hour_of(at double precision) RETURNS bigint LANGUAGE sql IMMUTABLE
        RETURN (floor(at / 3600) * 3600)::bigint;
    CREATE TABLE hourly_usage (
        tenant_id text NOT NULL, hour bigint NOT NULL, key_id text NOT NULL, model text NOT NULL, region text NOT NULL,
        {_COUNTERS}, PRIMARY KEY (tenant_id, hour, key_id, model, region)
    ) WITH (fillfactor = 70);
    CREATE INDEX hourly_usage_by_hour ON hourly_usage (hour);
    INSERT INTO hourly_usage
        SELECT tenant_id, hour_of(settled_at), key_id, model, region, count(*), sum(prompt_tokens), sum(cached_tokens),
            sum(output_tokens), sum(price_nanos), count(*) FILTER (WHERE outcome IN ('stop', 'length')),
            count(*) FILTER (WHERE outcome = 'cancelled'), count(*) FILTER (WHERE outcome = 'shed'),
            count(*) FILTER (WHERE outcome NOT IN ('stop', 'length', 'cancelled', 'shed', 'lost')),
            count(*) FILTER (WHERE outcome = 'lost')
        FROM ledger_former GROUP BY 1, 2, 3, 4, 5;
    ALTER TABLE daily_usage RENAME TO daily_usage_former;
    CREATE TABLE daily_usage (
        tenant_id text NOT NULL, day date NOT NULL, key_id text NOT NULL, model text NOT NULL, region text NOT NULL,
        {_COUNTERS}, PRIMARY KEY (tenant_id, day, key_id, model, region)
    );
    CREATE INDEX daily_usage_by_day ON daily_usage (day);
    INSERT INTO daily_usage (tenant_id, day, key_id, model, region, requests, prompt_tokens, output_tokens)
        SELECT tenant_id, day, key_id, model, '', requests, prompt_tokens, output_tokens FROM daily_usage_former;
    DROP TABLE daily_usage_former;
    CREATE VIEW usage AS
        SELECT day, tenant_id, key_id, model, sum(requests)::bigint AS requests,
            sum(prompt_tokens)::bigint AS prompt_tokens, sum(output_tokens)::bigint AS output_tokens,
            sum(cached_tokens)::bigint AS cached_tokens, sum(price_nanos)::bigint AS price_nanos
        FROM (
            SELECT day, tenant_id, key_id, model, requests, prompt_tokens, output_tokens, cached_tokens, price_nanos
            FROM daily_usage
            UNION ALL
            SELECT day_of(hour), tenant_id, key_id, model, requests, prompt_tokens, output_tokens, cached_tokens,
                price_nanos
            FROM hourly_usage
        ) AS totals
        GROUP BY day, tenant_id, key_id, model;
"""
# The former ledger holds all days up to the end of the present one, and of the latest day that it has.
_ATTACH_FORMER = """
    DO $$
        DECLARE until date;
        BEGIN
            IF NOT EXISTS (SELECT FROM ledger_former) THEN
                DROP TABLE ledger_former;
                RETURN;
            END IF;
            SELECT day_of(greatest(max(reserved_at), extract(epoch FROM now()))) + 1 INTO until FROM ledger_former;
            EXECUTE format('ALTER TABLE ledger_former RENAME TO %I', 'ledger_until_' || to_char(until, 'YYYYMMDD'));
            EXECUTE format('ALTER TABLE ledger ATTACH PARTITION %I FOR VALUES FROM (MINVALUE) TO (%L)',
                'ledger_until_' || to_char(until, 'YYYYMMDD'), extract(epoch FROM until));
        END
    $$;
"""
# Adds the partition of a day, and moves rows to it that are in the default partition. Returns false if these are more
# than `most_moved`, whose move would hold locks for long: the day then stays in the default partition.
_ADD_DAY = """
    CREATE FUNCTION add_ledger_day(the_day date, most_moved bigint) RETURNS boolean LANGUAGE plpgsql AS $$
        DECLARE
            name text := 'ledger_day_' || to_char(the_day, 'YYYYMMDD');
            since double precision := extract(epoch FROM the_day);
            until double precision := extract(epoch FROM the_day + 1);
            waiting bigint;
        BEGIN
            SELECT count(*) INTO waiting FROM (
                SELECT FROM ledger_default WHERE reserved_at >= since AND reserved_at < until LIMIT most_moved + 1
            ) AS found;
            IF waiting > most_moved THEN
                RETURN false;
            END IF;
            EXECUTE format('CREATE TABLE %I (LIKE ledger INCLUDING ALL)', name);
            EXECUTE format('WITH moved AS (
                DELETE FROM ledger_default WHERE reserved_at >= %L AND reserved_at < %L RETURNING *
            ) INSERT INTO %I SELECT * FROM moved', since, until, name);
            EXECUTE format('ALTER TABLE ledger ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', name, since, until);
            RETURN true;
        END
    $$;
"""
# Only totals of a region whose usage another one has are ever marked.
REPORTED_USAGE = """
    ALTER TABLE hourly_usage
        ADD COLUMN revision bigint NOT NULL DEFAULT 0, ADD COLUMN is_unreported boolean NOT NULL DEFAULT false;
    CREATE INDEX hourly_usage_unreported ON hourly_usage (hour) WHERE is_unreported;
"""
LEDGER_BY_DAY = f"{_FORMER_LEDGER}{_LEDGER}{_TOTALS}{_ATTACH_FORMER}{_ADD_DAY}"

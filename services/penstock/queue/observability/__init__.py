"""Observability of a shard: metrics, spans, log lines, and the tables for operators."""

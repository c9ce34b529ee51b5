"""Spark: the session, typed change frames, Postgres types, compaction by key."""

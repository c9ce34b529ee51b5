"""The Postgres sink: another database that follows the source, transaction by transaction."""

"""Handing over from the source to a Postgres target: stop writes, catch up, prove, say so."""

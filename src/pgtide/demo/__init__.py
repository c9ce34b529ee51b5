"""``pgtide demo``: a small shop in a private Postgres, captured, killed, read back, proven.

``run`` orchestrates; ``workload`` is the shop and keeps its own count of what
Postgres said it committed; ``live`` prints events as they arrive; ``proof``
reads the log back and compares it with that count and with the tables.
"""

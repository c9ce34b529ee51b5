"""``pgtide demo``: a small shop in a private Postgres, mirrored into a lake, killed, proven.

``run`` orchestrates; ``workload`` is the shop and keeps its own count of what
Postgres said it committed, ``day`` is what happens in it; ``running`` is the
``pgtide run`` that is killed; ``live`` prints events as they arrive. At the end
``proof`` compares the log, ``lake`` the mirrors and ``answers`` the pivot with
the tables and with that count; ``report`` says so.
"""

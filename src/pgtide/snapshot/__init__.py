"""History: the rows that were there before the log began, and rows read again."""

"""Verification: whether targets are equal to the source, at a common position, while both move."""

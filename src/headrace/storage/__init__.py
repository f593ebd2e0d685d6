"""Bytes at rest: files here and far away, what is kept beside them, and arrays in memory."""

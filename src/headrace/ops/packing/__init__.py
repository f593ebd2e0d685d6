"""Packs sequences of different lengths into rows of a fixed length.

`operations` defines the strategies, with `layout` (the features of a row), `bins`, `concat_split` and
`long_sequences`; `streams` computes rows, from the `intake` of sequences to writing `rows`; `report` counts padding.

A segment is what a row has of one sequence: all of it, or a part.
"""

"""What both kinds of datasets share, and what type checkers know of it."""

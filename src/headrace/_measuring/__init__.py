"""What measurements mean: what bounds a run, and what it could give."""

"""States of iterators: positions as JSON and back, and what tells a state of another pipeline."""

"""How a `DataLoader` becomes a dataset, and what its states hold."""

"""Other libraries' names for what Headrace does."""

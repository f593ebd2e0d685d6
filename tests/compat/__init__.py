"""What Grain offers and its clients do, with Headrace in its place."""

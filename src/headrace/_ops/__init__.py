"""What each operation means: its length, which parent indices it needs, what it does to elements, its spec."""

"""What each operation means: its length, the parent indices it needs, what it does to elements, its spec."""

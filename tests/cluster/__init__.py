"""Workers on a real Ray cluster of three nodes on this machine, and faults that are real."""

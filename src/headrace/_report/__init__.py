"""A pipeline's numbers for people: as a page that needs nothing else, and as pieces of a live page."""

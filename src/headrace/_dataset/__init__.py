"""What both kinds of datasets share, and their types."""

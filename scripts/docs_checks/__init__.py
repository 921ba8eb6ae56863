"""What scripts/check_docs.py checks, one kind of thing per module."""

"""Files and long work: written whole or not at all, digests, locks, progress bars."""

"""One file per command; the only place that prints."""

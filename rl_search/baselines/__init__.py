"""The methods that a learning search is compared with, all on the same archive and masks."""

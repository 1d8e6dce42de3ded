"""The configuration file: its sections, each with the parameters made of it."""

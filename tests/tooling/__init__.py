"""Programs that tests run and that are no Python packages: where they are, or how they get here."""

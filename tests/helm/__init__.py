"""The chart, by the real Helm."""

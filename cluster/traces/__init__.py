"""What do users ask, and when? Recorded traces, traces made up, and their scaling."""

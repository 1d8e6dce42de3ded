"""A pool's layouts: the search for a better one, and the way to it while requests come."""

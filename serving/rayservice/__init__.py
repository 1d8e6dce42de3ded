"""Shardwise as a Serve application of a RayService: brought up, and moved to another plan."""

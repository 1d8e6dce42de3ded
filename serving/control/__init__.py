"""The controller beside the service: what it hears, what it does to Serve and to replicas."""

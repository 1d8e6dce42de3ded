"""What do replicas use on their node, what is left of those that are gone? One keeper per node."""

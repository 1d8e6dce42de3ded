"""The live data plane: gateway, engine replicas, controller actor, and their life on Ray Serve."""

"""Plain data: devices, clusters, models, layouts, plans. Nothing here computes a time."""

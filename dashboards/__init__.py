"""Grafana dashboards as code: what they show, how they are written down, how they get to Grafana.

Nothing here knows the service but by names of its metrics.
"""

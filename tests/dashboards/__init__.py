"""Dashboards, their way into Grafana, and alerts."""

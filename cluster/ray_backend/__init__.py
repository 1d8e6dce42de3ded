"""Layouts on Ray: bundles of a placement group, and what a Ray cluster or this machine offers."""

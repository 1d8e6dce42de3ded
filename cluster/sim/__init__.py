"""How does the cluster behave over time?"""

"""What is the cluster, what does a layout cost on it, how does it behave over time?"""

"""What can be measured from outside: the contract of metrics, and how each comes to be scraped."""

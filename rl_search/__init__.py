"""Which layout do we want? The space of layouts, its exact solution, and its reports."""

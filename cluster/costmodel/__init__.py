"""What a layout costs: vectorised over layouts, a sum of named parts."""

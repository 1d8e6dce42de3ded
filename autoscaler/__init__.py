"""When and how do we change the cluster? Pure policies and the controller that joins them."""

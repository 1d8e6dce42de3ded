"""How many tokens will an answer have? Predictors that gateway and simulator share."""

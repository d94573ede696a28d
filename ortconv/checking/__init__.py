"""Gates on a model against a stored one: what moved since, and whether that is allowed."""

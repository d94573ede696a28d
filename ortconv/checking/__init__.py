"""Gates on a model against an accepted one: the changes since, and whether they are allowed."""

"""Worker processes: calls in other processes of this machine, which may die."""

"""The models of a repository in one file, ortconv.toml: their conversions, targets, and conditions that must hold."""

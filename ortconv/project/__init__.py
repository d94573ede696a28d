"""The models of a repository in one file, ortconv.toml: how they are converted, for which targets, and what must hold of them."""

"""Which conversion and which session options suit a model best: every candidate is converted, validated and measured."""

"""A search for the conversion and session options that suit a model best: every candidate is converted, validated and measured."""

"""Stands in for PyPI's package `lm_eval`: what an adapter for a model needs of it."""

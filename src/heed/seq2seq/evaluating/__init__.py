"""Measuring and comparing runs."""

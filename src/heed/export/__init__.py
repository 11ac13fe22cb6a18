"""Shipping: models leave Python."""

"""Planted faults: a check that the tests notice when the code is wrong."""

"""Batches on a Ray cluster: ``Generator`` for datasets, and what ``run-batch --ray`` starts. Needs ``glinfer[ray]``."""

from glinfer.ray.generator import Generator

__all__ = ["Generator"]

"""Batches on a Ray cluster: ``Generator`` for datasets, and actors for ``run-batch --ray``. Needs ``glinfer[ray]``."""

from glinfer.ray.generator import Generator

__all__ = ["Generator"]

"""Formats of numbers in reports."""


def megabytes(count: int) -> str:
    """Format bytes for people."""
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count:,} B"

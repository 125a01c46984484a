"""The ``glinfer`` command: one thin module per subcommand over the library."""

from glinfer.cli.app import main

__all__ = ["main"]

"""``python -m glinfer``: the same as the ``glinfer`` command."""

from glinfer.cli import main

main()

"""Instruments for building glinfer, run from the checkout: ``python -m qa``. The package never imports them."""

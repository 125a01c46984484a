"""Models on a hub: find them by name, check their headers, and fetch them into the cache that all tools share.

This package uses files and the network, but no graphics. It needs the extra ``hub``. Only the name of a model on a hub
opens a connection.
"""

from glinfer.hub.cache import Origin, origin_of, title_of
from glinfer.hub.fetch import Check, Described, find_model, header_of, named_on_a_hub
from glinfer.hub.names import HubName, hub_name

__all__ = [
    "Check",
    "Described",
    "HubName",
    "Origin",
    "find_model",
    "header_of",
    "hub_name",
    "named_on_a_hub",
    "origin_of",
    "title_of",
]

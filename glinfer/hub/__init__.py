"""Models on a hub, by their names: found, checked by their headers, fetched into the cache that all tools share.

This room knows files and the network, and nothing of graphics. It needs the extra ``hub``, and is asked for by names of
models alone; nothing else opens a connection.
"""

from glinfer.hub.cache import Origin, origin_of, title_of
from glinfer.hub.fetch import Check, Described, Pulled, find_model, header_of, named_on_a_hub, pull
from glinfer.hub.names import HubName, hub_name

__all__ = [
    "Check",
    "Described",
    "HubName",
    "Origin",
    "Pulled",
    "find_model",
    "header_of",
    "hub_name",
    "named_on_a_hub",
    "origin_of",
    "pull",
    "title_of",
]

from __future__ import annotations

from hub_fixtures import cache, folder_files, gguf, hub, servers

__all__ = ["cache", "folder_files", "gguf", "hub", "servers"]

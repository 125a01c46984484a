"""Pictures of what a model computes over one text, and a page to browse them."""

"""Pictures of what happens inside a model over one text, and a page to browse them."""

"""Two models, plans, weight formats or renderers side by side."""

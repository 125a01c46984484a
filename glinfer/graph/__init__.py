"""What a model computes, node by node: its weights, their shapes, and the order of its operations."""

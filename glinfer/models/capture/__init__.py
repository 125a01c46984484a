"""Names for the tensors inside a plan, and where each plan keeps them."""

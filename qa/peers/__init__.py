"""Other engines that run the same checkpoint."""

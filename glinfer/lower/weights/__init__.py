"""From a checkpoint to the arrays that fast plans upload: norms folded, rows permuted, weights packed."""

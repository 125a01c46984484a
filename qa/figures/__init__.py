"""Every published figure: measured by commands, kept as JSON in docs/figures, and written into the documents."""

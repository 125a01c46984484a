"""``python -m qa pictures``: the pictures and transcripts of the documents, made again."""

"""Text without OpenGL: tokenizers, chat templates, stops, and text out of token bytes."""

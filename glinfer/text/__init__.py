"""Text without OpenGL: tokenizers, chat templates, stop ids, and text from token bytes."""

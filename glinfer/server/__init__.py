"""An HTTP server with OpenAI's routes over the scheduler; see docs/server.md."""

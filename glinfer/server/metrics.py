"""The metrics of a server, in Prometheus' text format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_RATES = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0)


class Metrics:
    """The counters of one server; thread-safe."""

    def __init__(self) -> None:
        """Start all counters at 0."""
        self.registry = CollectorRegistry()
        model = ("model",)

        def counter(name: str, words: str, labels: tuple[str, ...] = model) -> Counter:
            return Counter(f"glinfer_{name}", words, labels, registry=self.registry)

        def gauge(name: str, words: str, labels: tuple[str, ...] = model) -> Gauge:
            return Gauge(f"glinfer_{name}", words, labels, registry=self.registry)

        def histogram(name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"glinfer_{name}", words, model, buckets=buckets, registry=self.registry)

        self.requests = counter("requests_total", "Answers, by route and status.", ("route", "status"))
        self.rejected = counter("rejected_total", "Requests refused before they ran.", ("reason",))
        self.prompt_tokens = counter("prompt_tokens_total", "Prompt tokens.")
        self.reused_tokens = counter("reused_tokens_total", "Prompt tokens reused from a cache.")
        self.tokens = counter("tokens_total", "Generated tokens.")
        self.draws = counter("draws_total", "Draw calls.")
        self.finished = counter("finished_total", "Finished sequences, by reason.", ("model", "reason"))
        self.losses = counter("context_losses_total", "OpenGL contexts lost and reopened.", ())
        self.running = gauge("running", "Running sequences.")
        self.waiting = gauge("waiting", "Waiting sequences.")
        self.texture_bytes = gauge("texture_bytes", "Texture memory of all models, caches and scratch textures.", ())
        self.first_token = histogram("first_token_seconds", "Seconds from a request to its first token.", _SECONDS)
        self.rate = histogram("tokens_per_second", "Generated tokens per second of one sequence.", _RATES)

    def text(self) -> bytes:
        """All metrics as text."""
        return generate_latest(self.registry)

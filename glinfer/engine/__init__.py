"""Running a model: sequences, caches, sampling, the scheduler, scoring, and the Model over them."""

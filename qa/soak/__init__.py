"""Run one model for long, and check that memory, objects, speed and answers stay as they were."""

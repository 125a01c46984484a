"""Reference plans: Gab's 244 published passes, and the plain decoder of every other family."""

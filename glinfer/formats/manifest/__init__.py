"""Second-generation Gab: a JSON manifest and the .bin files next to it."""

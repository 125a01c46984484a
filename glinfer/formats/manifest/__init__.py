"""Second-generation Gab: a JSON manifest and the .bin files beside it."""

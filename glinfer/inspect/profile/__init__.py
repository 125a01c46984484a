"""Where the time of a token goes, draw by draw."""

"""A long run of one model, after which memory, objects, speed and answers have to be as before."""

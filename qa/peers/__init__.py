"""Run the same checkpoint in PyTorch and llama.cpp, to compare speed, memory and errors."""

"""Run the same checkpoint in PyTorch, llama.cpp and transformers, to compare speed, memory and errors."""

"""LoRA adapters: the file of PEFT, that of llama.cpp, and the sum with the weights of their model."""

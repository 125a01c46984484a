"""LoRA adapters: reading PEFT and llama.cpp files, and merging adapters into a model's weights."""

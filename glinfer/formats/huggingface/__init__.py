"""Hugging Face models: ``config.json`` and safetensors files."""

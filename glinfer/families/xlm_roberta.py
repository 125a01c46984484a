"""XLM-RoBERTa (Conneau et al. 2020): RoBERTa over a vocabulary of a hundred languages; bge-m3 is of this form."""

from dataclasses import replace

from glinfer.families import roberta

FAMILY = replace(roberta.FAMILY, name="xlm-roberta", huggingface=roberta.named("xlm-roberta", 250002))

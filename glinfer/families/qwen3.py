"""Qwen 3 (Qwen Team 2025): a Llama with normalised heads of queries and keys; a window in its last layers."""

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import Classifier, HuggingFace, later_windows
from glinfer.families.layer import LayerConfig
from glinfer.families.record import Family

RERANK_PROMPT = (
    "<|im_start|>system\n"
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n"
    "<Document>: {text}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""Qwen3-Reranker's prompt, with the task of its example, as published with its weights."""

FAMILY = Family(
    "qwen3",
    layer=LayerConfig(head_norms="head"),
    attention_biases=("q", "k", "v", "o"),
    huggingface=HuggingFace(
        sizes=(151936, 4096, 22016, 32, 32, 32, 128, 32768),
        windows=later_windows,
        classifier=Classifier(("score",)),
    ),
    gguf=Gguf("qwen3", attention_bias=False),
    rerank_prompt=RERANK_PROMPT,
)

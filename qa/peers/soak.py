"""Many short sequences in one process with glinfer, llama.cpp and transformers: does the memory stay as it was.

The same random Llama for all, converted by glinfer: a GGUF file for llama.cpp (float32), safetensors for transformers.
Each engine runs in a process of its own, with one thread, and does the same: sequences of random lengths, each with a
prompt that is read at once and tokens that are chosen greedily one by one. Two ways where an engine has both: a new
cache for each sequence, or one that is emptied. What counts begins after a tenth of the sequences: the process's memory
(RSS) in the first and in the last quarter, medians; tokens a second, prompts included; and whether a fixed prompt gives
the same logits bit for bit as the first time.

    .venv/bin/python -m qa.peers.soak                       # 2,000 sequences of about 25 tokens each

Needs llama-cpp-python, gguf, torch and transformers. A way whose package is missing is left out.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
SHAPE = "family=llama,blocks=4,heads=4,kv_heads=2,dim=128,inner=384,vocab=512,context=256"
CONTEXT, VOCAB = 256, 512
SAMPLES = 40

Logits = np.ndarray[Any, Any]
Sequence = Callable[[list[int], int], Logits]
"""Prompt and how many tokens to choose → the logits [vocab] of the prompt's last token."""


def write_models(folder: Path) -> None:
    """One random model as ``model.safetensors`` with ``config.json``, and as ``model.gguf``."""
    from glinfer.config import ModelConfig
    from glinfer.formats import load_checkpoint, random_checkpoint, save_checkpoint

    checkpoint = random_checkpoint(ModelConfig.from_options(SHAPE), seed=1, scale=0.08)
    save_checkpoint(checkpoint, folder / "model.safetensors")
    command = [sys.executable, "-m", "glinfer", "convert", folder / "model.safetensors", folder / "model.gguf"]
    subprocess.run(list(map(str, command)), cwd=ROOT, check=True, capture_output=True)
    config = load_checkpoint(folder / "model.safetensors").config
    told = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.layer_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": "silu",
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(told))


def glinfer_way(folder: Path, *, anew: bool) -> Sequence:
    """A new session for each sequence, or one that is rewound."""
    import glinfer

    model = glinfer.load(folder / "model.safetensors")
    kept = None if anew else model.session()

    def run(prompt: list[int], count: int) -> Logits:
        session = model.session() if kept is None else kept
        session.rewind(len(session))
        session.prefill(prompt)
        logits = session.logits()
        session.generate_ids(count)
        if kept is None:
            session.close()
        return logits

    return run


def llama_way(folder: Path, *, anew: bool) -> Sequence:
    """A new context for each sequence, or one whose cache is cleared; one thread, keys and values float32."""
    import llama_cpp as llama

    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, None)
    llama.llama_backend_init()
    options = llama.llama_model_default_params()
    options.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(str(folder / "model.gguf").encode(), options)
    settings = llama.llama_context_default_params()
    settings.n_ctx = settings.n_batch = CONTEXT
    settings.n_threads = settings.n_threads_batch = 1
    settings.offload_kqv = settings.op_offload = False
    settings.type_k = settings.type_v = llama.GGML_TYPE_F32
    settings.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
    kept = None if anew else llama.llama_init_from_model(model, settings)

    def decode(context: Any, ids: list[int]) -> Logits:
        array = (llama.llama_token * len(ids))(*ids)
        assert llama.llama_decode(context, llama.llama_batch_get_one(array, len(ids))) == 0
        return np.ctypeslib.as_array(llama.llama_get_logits_ith(context, -1), shape=(VOCAB,)).copy()

    def run(prompt: list[int], count: int) -> Logits:
        context = llama.llama_init_from_model(model, settings) if kept is None else kept
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        logits = first = decode(context, prompt)
        for _ in range(count - 1):
            logits = decode(context, [int(logits.argmax())])
        if kept is None:
            llama.llama_free(context)
        assert silent  # called for as long as the library is used
        return first

    return run


def transformers_way(folder: Path, *, anew: bool) -> Sequence:
    """``generate``, which makes a cache for each call; there is no other way."""
    assert anew
    import torch
    from transformers import LlamaForCausalLM

    torch.set_num_threads(1)
    model: Any = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None

    def run(prompt: list[int], count: int) -> Logits:
        with torch.no_grad():
            found = model.generate(
                torch.tensor([prompt]),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
            )
        return np.array(found.logits[0][0].numpy())

    return run


WAYS: dict[str, tuple[Callable[..., Sequence], bool]] = {
    "glinfer, a new session each": (glinfer_way, True),
    "glinfer, one session rewound": (glinfer_way, False),
    "llama.cpp, a new context each": (llama_way, True),
    "llama.cpp, one context cleared": (llama_way, False),
    "transformers, generate": (transformers_way, True),
}


def rss() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(run: Sequence, sequences: int, seed: int) -> dict[str, Any]:
    """Run sequences, and look at memory and at a fixed prompt in between."""
    rng = random.Random(seed)
    probe = list(range(7, 40))
    first = run(probe, 2)
    warm_up, memory, equal, tokens = sequences // 10, list[int](), 0, 0
    seconds, apart = 0.0, max(1, (sequences - sequences // 10) // SAMPLES)
    for number in range(sequences):
        lengths = [max(1, min(CONTEXT // 2, round(rng.expovariate(1 / 12.5)))) for _ in range(2)]
        prompt = [rng.randrange(VOCAB) for _ in range(lengths[0])]
        started = time.perf_counter()
        run(prompt, lengths[1])
        if number >= warm_up:
            seconds += time.perf_counter() - started
            tokens += sum(lengths)
            if (number - warm_up) % apart == 0:
                equal += bool(np.array_equal(first, run(probe, 2)))
                gc.collect()
                memory.append(rss())
    count = len(memory) // 4
    begin, end = statistics.median(memory[:count]), statistics.median(memory[-count:])
    return {
        "sequences": sequences,
        "tokens": tokens,
        "first_quarter": begin,
        "last_quarter": end,
        "growth": end / begin - 1,
        "bytes_a_sequence": (end - begin) / (0.75 * (sequences - warm_up)),
        "tokens_per_second": tokens / seconds,
        "probes": len(memory),
        "equal": equal,
        "logits": first.tolist(),
    }


def main() -> int:
    """Run all ways, each in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        make, anew = WAYS[chosen.one]
        print(json.dumps(soak(make(chosen.folder, anew=anew), chosen.sequences, chosen.seed)))
        return 0
    print(f"{'':32}{'memory, first → last quarter':>30}{'growth':>9}{'B/sequence':>12}{'tok/s':>8}  same logits")
    reference: Logits | None = None
    with tempfile.TemporaryDirectory(prefix="soak-peers-") as name:
        write_models(Path(name))
        for way in WAYS:
            command = [sys.executable, "-m", "qa.peers.soak", "--one", way, "--folder", name]
            numbers = ["--sequences", str(chosen.sequences), "--seed", str(chosen.seed)]
            environment = {**os.environ, "LP_NUM_THREADS": "0", "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [*command, *numbers], capture_output=True, text=True, env=environment, cwd=ROOT, check=False
            )
            if done.returncode:
                print(f"{way:32}left out: {done.stderr.strip().splitlines()[-1]}")
                continue
            told = json.loads(done.stdout.splitlines()[-1])
            logits = np.array(told.pop("logits"))
            reference = logits if reference is None else reference
            off = float(np.abs(logits - reference).max())
            sizes = f"{told['first_quarter'] / 1e6:.1f} → {told['last_quarter'] / 1e6:.1f} MB"
            print(
                f"{way:32}{sizes:>30}{told['growth']:>+9.2%}{told['bytes_a_sequence']:>12,.0f}"
                f"{told['tokens_per_second']:>8,.0f}  {told['equal']}/{told['probes']}, {off:.1g} off the first",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())

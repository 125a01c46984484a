"""The tables of figures: the commands of each, and its rows from the JSON that a command prints.

A row maps columns to cells: text, a number, None, or [median, fastest, slowest]; times are milliseconds, unless the
column says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from glinfer.inspect.bench.engines import GREEDY

Row = dict[str, Any]
Commands = Mapping[str, str]


@dataclass(frozen=True)
class Measure:
    """One table: its rows from a command's label and result, and the commands of each kind of machine by label."""

    rows: Callable[[str, Any], Iterator[Row]]
    cpu: Commands = field(default_factory=dict)
    gpu: Commands = field(default_factory=dict)


def _spread(found: Row, ending: str = "", factor: float = 1) -> list[float]:
    return [float(f"{factor * found[f'{name}{ending}']:.4g}") for name in ("median", "fastest", "slowest")]


def _times(row: Row) -> Row:
    names = {"decode": "token, read back", "pipelined": "pipelined", "prefill": f"prompt of {row['context']}"}
    return {name: row[way] and _spread(row[way]) for way, name in names.items()}


def compared(base: float, other: float) -> str:
    """How fast another engine is, compared with glinfer's time ``base``."""
    return f"{base / other:.1f}× faster" if other < base else f"{other / base:.1f}× slower"


def _decoding(label: str, report: Any) -> Iterator[Row]:
    base, engines = report["rows"][0], {each["label"]: each for each in report["engines"]}
    steps = {(each["label"], each["sampling"]): each for each in report["batch"]}
    for row in report["rows"]:
        about, step = engines[row["label"]], steps.get((row["label"], row["sampling"]))
        if label and about["weights"] and row["sampling"] == GREEDY:
            continue  # a table of several commands has one line of glinfer for each
        found: Row = {"": label} if label else {}
        found |= {"engine": row["label"], "sampling": row["sampling"], **_times(row)}
        if step is not None:
            found |= {f"step of {step['sequences']}": _spread(step["step"]), "tok/s": round(step["tokens_per_second"])}
        if about["weights"] is not None:
            token = min(row["decode"]["median"], row["pipelined"]["median"])
            shares = row["token_limit"]["limit_ms"] / token, row["prefill_limit"]["limit_ms"] / row["prefill"]["median"]
            size, start = about["texture_bytes"]["weight"] / 1e6, sum(about["startup"].values())
            found |= {"of the limit: token, prompt": ", ".join(f"{share:.0%}" for share in shares)}
            found |= {"draws, weights, start": f"{about['draws']}, {size:,.0f} MB, {start:.1f} s"}
        else:
            token, prompt = (compared(base[way]["median"], row[way]["median"]) for way in ("decode", "prefill"))
            found["compared with the first line"] = f"token {token}, prompt {prompt}"
        yield found


def _sampling(label: str, report: Any) -> Iterator[Row]:
    alone = {row["sampling"]: row for row in report["rows"]}
    for step in report["batch"]:
        one = alone.get(step["sampling"])
        yield {
            "sampling": step["sampling"],
            "alone, pipelined": one and _times(one)["pipelined"],
            "of greedy": one and f"{one['of_greedy']:.0%}",
            f"step of {step['sequences']}": _spread(step["step"]),
            "tok/s": round(step["tokens_per_second"]),
            "share of greedy": f"{step['of_greedy']:.0%}",
        }


def _choices(label: str, found: Any) -> Iterator[Row]:
    read = f"{found['unsure'] / found['tokens']:.1%}"
    yield {
        "model": label,
        "tokens": found["tokens"],
        "texts that differ": len(found["differing"]),
        "choices read back": read,
    }


def _drafts(label: str, report: Any) -> Iterator[Row]:
    for row in report["rows"]:
        times = {"token, plain": _spread(row["plain"]), "token, with drafts": _spread(row["with_drafts"])}
        accepted, same = f"{row['accepted']} of {row['drafted']}", "yes" if row["same"] else "NO"
        yield {"text": row["task"], "sampling": row["sampling"], **times, "speedup": f"{row['times_plain']:.2f}×",
               "accepted": accepted, "same text": same}  # fmt: skip


def _server(label: str, found: Any) -> Iterator[Row]:
    first = f"{found['first_token_p50']:.2f}, {found['first_token_p95']:.2f}"
    yield {"clients": found["clients"], "slots": found["slots"], "tokens an answer": found["max_tokens"],
           "tok/s": round(found["rate"]), "`generate --batch`, tok/s": round(mean(found["batch_rates"])),
           "share": f"{found['share']:.0%}", "first token, s: median, p95": first}  # fmt: skip


def _batches(label: str, found: Any) -> Iterator[Row]:
    yield {"processes": label, "lines": found["lines"], "tok/s": round(found["tokens_per_second"])}


def _embedding(label: str, found: Any) -> Iterator[Row]:
    for name, seconds in found["seconds"].items():
        more = {"compared with glinfer": compared(found["seconds"]["glinfer"], seconds),
                "largest difference": f"{found.get('largest_difference', 0):.1e}"}  # fmt: skip
        yield {"engine": name, "sentences/s": round(found["texts"] / seconds), **(more if name != "glinfer" else {})}


def _accuracy(label: str, found: Any) -> Iterator[Row]:
    for each in found:
        size, cache = (f"{each[name] / 1e6:.1f} MB" for name in ("weight_bytes", "cache_bytes"))
        change = each["bits_per_byte"] / found[0]["bits_per_byte"] - 1
        yield {"weights": f"`{each['weights']}`, {size}", "cache": f"`{each['cache']}`, {cache}",
               "bits/byte": f"{each['bits_per_byte']:.4f}", "change": f"{change:+.3%}",
               "same top-1": each["agreement"] and f"{each['agreement']:.2%}"}  # fmt: skip


def _reference(label: str, report: Any) -> Iterator[Row]:
    yield {f"length {row['tokens']}": _spread(row, "_ms") for row in report["rows"]}


def _web(label: str, found: Any) -> Iterator[Row]:
    """A row for each engine; the name of a way is ``engine, weights`` and maybe more."""
    rows, ours = dict[str, Row](), dict[str, Any]()
    first = {"": label} if label else {}
    for model, result in found["models"].items():
        for way in result["ways"]:
            engine, weights, *more = way["name"].split(", ")
            name, key = ", ".join((engine, *more)), f"{model} {weights}"
            row = rows.setdefault(name, {**first, "engine": name, "compared with glinfer": None})
            row |= {f"{key}: token": _spread(way["decode_seconds"], factor=1000)}
            row |= {f"{key}: prompt, s": way["prompt_seconds"] and _spread(way["prompt_seconds"])}
            base = ours.setdefault(key, way)
            if engine != "glinfer":
                parts = {"token": "decode_seconds", "prompt": "prompt_seconds"}
                both = (f"{part} {compared(base[time]['median'], way[time]['median'])}"
                        for part, time in parts.items() if way[time])  # fmt: skip
                said = filter(None, (row["compared with glinfer"], f"{key}: {', '.join(both)}"))
                row["compared with glinfer"] = "; ".join(said)
        absent = (line.partition(", ")[0] for line in result["left_out"])
        rows |= {name: {**first, "engine": name, "compared with glinfer": "not installed"} for name in absent}
    yield from rows.values()


_GEMMA = "gemma3_text,blocks=18,heads=4,kv_heads=1,head_dim=256,dim=640,inner=2048,vocab=262144"
_QWEN = "qwen3,blocks=28,heads=16,kv_heads=8,head_dim=128,dim=1024,inner=3072,vocab=151936"
_LLAMA = "llama,blocks=16,heads=32,kv_heads=8,dim=2048,inner=8192,vocab=128256"
_LFM = "lfm2,blocks=16,heads=32,kv_heads=8,dim=2048,inner=8192,vocab=65536"
_GRANITE = "granitemoehybrid,blocks=40,heads=12,kv_heads=4,dim=1536,inner=4096,vocab=100352"
_BITNET = "bitnet,blocks=30,heads=20,kv_heads=5,dim=2560,inner=6912,vocab=128256"
_SIZES = {
    "Gemma 3 270M": _GEMMA, "Qwen 3 0.6B": _QWEN, "Llama 3.2 1B": _LLAMA, "LFM2 1.2B": _LFM,
    "Granite 4.0 H 1B": _GRANITE, "BitNet 2B4T": _BITNET}  # fmt: skip
_BENCH, _WEB, _LOAD = "python -m qa bench", "python -m qa bench-web --models", "python -m qa serve-load --clients"
_BATCH = "glinfer run-batch -i requests.jsonl -o answers.jsonl --restart --slots 64 shakespeare"
_EVERY = "glinfer bench shakespeare --weights q8 --contexts 128 --runs 7 --every-option --batch"
_EVAL = "glinfer eval shakespeare --text tinyshakespeare.txt --last 0.02 --stride 256 --weights f32 --compare"
_LENGTHS = "glinfer bench --plan reference --runs 3 --lengths"
_CHOICES, _CHAT = "python -m qa choices --tokens 50", "smollm2 --settings 8"
MEASURES = {
    "gab": Measure(
        _decoding,
        {"": f"{_BENCH} --weights q8,f32 --contexts 128 --batch 32 --runs 5 --peers torch,llama-cpp,transformers"},
        {"": f"{_BENCH} --weights q8,f32 --contexts 512 --batch 32 --runs 7 --peers torch"}),
    "smollm2": Measure(_decoding, {
        "": f"{_BENCH} smollm2 --weights q8,file,q8l,q16 --contexts 128 --batch 16 --runs 3"
            " --peers llama-cpp,transformers"}),
    "sizes": Measure(_decoding, gpu={
        name: f"glinfer bench --config family={shape},context=4096 --weights q8 --contexts 512 --runs 3"
        for name, shape in _SIZES.items()}),
    "sampling": Measure(_sampling, gpu={"": f"{_EVERY} 64"}),
    "choices": Measure(_choices, {"shakespeare": f"{_CHOICES} --settings 40", "SmolLM2": f"{_CHOICES} {_CHAT}"},
                       {"shakespeare": f"{_CHOICES} --settings 200", "SmolLM2": f"{_CHOICES} {_CHAT}"}),
    "server": Measure(_server, {"": f"{_LOAD} 16 --slots 16 --max-tokens 32 --prompts 100 --seconds 20"},
                      {"": f"{_LOAD} 128 --slots 64 --max-tokens 128 --prompts 1000 --seconds 20"}),
    "batches": Measure(_batches, {"1, the default": _BATCH}, {"1": f"{_BATCH} --devices 0", "2, the default": _BATCH}),
    "drafts": Measure(_drafts, {"": "glinfer bench smollm2 --weights file --speculate ngram --runs 1"}),
    "embedding": Measure(_embedding, {
        "": "python -m qa embed-speed all-MiniLM-L6-v2 --count 300 --runs 2 --peer all-MiniLM-L6-v2"}),
    "threads": Measure(_decoding, {
        words or "default": f"{words} {_BENCH} --weights q8 --contexts 128 --runs 5 --peers torch".strip()
        for words in ("", "LP_NUM_THREADS=0", "GLINFER_KEEP_AWAKE=1")}),
    "accuracy": Measure(_accuracy, {"": f"{_EVAL} f16,q16,q8l,q8,cache=f16,q8+cache=f16,cache=q8"}),
    "reference": Measure(_reference, {"": f"{_LENGTHS} 1,8,64"}, {"": f"{_LENGTHS} 1,8,64,128,512"}),
    "web": Measure(_web, {"": f"{_WEB} gab,smollm2 --rounds 2 --count 8"}, {
        name: f"GLINFER_ANGLE={angle} {_WEB} gab,smollm2 --peers tfjs,wllama --rounds 4 --count 32 --threads 8"
        for name, angle in (("OpenGL ES", "gl-egl"), ("Vulkan", "vulkan"))}),
}  # fmt: skip
"""Every table by name; its file of figures is ``MACHINE-NAME.json``."""
BATCH_LINES = {"cpu": 300, "gpu": 2000}
QUICK = {"--runs": "1", "--rounds": "1", "--seconds": "2", "--settings": "2", "--prompts": "4", "--batch": "2",
         "--last": "0.001", "--lengths": "1,8", "--count": "8", "--config": "context=512", "--contexts": "32",
         "--models": "shakespeare"}  # fmt: skip
"""Small settings, to try all commands within minutes."""

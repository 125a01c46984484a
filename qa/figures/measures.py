"""The tables of figures: the commands of each, and its rows from the JSON that a command prints.

A row maps columns to cells: text, a number, None, or [median, fastest, slowest]; times are milliseconds, unless the
column says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

Row = dict[str, Any]
Commands = Mapping[str, str]
_SPREAD = ("median", "fastest", "slowest")


@dataclass(frozen=True)
class Measure:
    """One table: its rows from a command's label and result, and the commands of each kind of machine by label."""

    rows: Callable[[str, Any], Iterator[Row]]
    cpu: Commands = field(default_factory=dict)
    gpu: Commands = field(default_factory=dict)


def short(number: float) -> float:
    """Round to four digits."""
    return float(f"{number:.4g}")


def _times(row: Row) -> Row:
    names = {"decode": "token, read back", "pipelined": "pipelined", "prefill": f"prompt of {row['context']}"}
    return {name: row[way] and [short(row[way][each]) for each in _SPREAD] for way, name in names.items()}


def _limits(row: Row) -> str:
    """Shares of the limits that a token, by the faster way, and a prompt reach."""
    token = min(row["decode"]["median"], row["pipelined"]["median"])
    shares = row["token_limit"]["limit_ms"] / token, row["prefill_limit"]["limit_ms"] / row["prefill"]["median"]
    return " / ".join(f"{share:.0%}" for share in shares)


def next_to(base: float, other: float) -> str:
    """How fast another engine is, next to glinfer's time ``base``."""
    return f"{base / other:.2g}× faster" if other < base else f"{other / base:.2g}× slower"


def _decoding(label: str, report: Any) -> Iterator[Row]:
    base, engines = report["rows"][0], {each["label"]: each for each in report["engines"]}
    steps = {(each["label"], each["sampling"]): each for each in report["batch"]}
    for row in report["rows"]:
        about, step = engines[row["label"]], steps.get((row["label"], row["sampling"]))
        found: Row = {"engine": row["label"], "sampling": row["sampling"], **_times(row)}
        if step is not None:
            found[f"step of {step['sequences']}"] = [short(step["step"][each]) for each in _SPREAD]
            found["tok/s of all"] = round(step["tokens_per_second"])
        if about["weights"] is not None:
            size = sum(about["texture_bytes"].values()) - about["texture_bytes"]["cache"]
            found["of the limit"] = _limits(row)
            found["textures, start"] = f"{size / 1e6:,.0f} MB, {sum(about['startup'].values()):.2f} s"
        else:
            token, prompt = (next_to(base[way]["median"], row[way]["median"]) for way in ("decode", "prefill"))
            found["next to the first line"] = f"token {token}, prompt {prompt}"
        yield found


def _sizes(label: str, report: Any) -> Iterator[Row]:
    about, row = report["engines"][0], report["rows"][0]
    size = f"{about['weight_bytes'] / 1e6:,.0f} MB"
    yield {"model": label, "draws": about["draws"], "weights a token": size, **_times(row),
           "of the limit": _limits(row)}  # fmt: skip


def _threads(label: str, report: Any) -> Iterator[Row]:
    ours, *_, last = map(_times, report["rows"])
    peer = report["rows"][-1]["label"]
    yield {"environment": label, **ours, **({} if peer.startswith("glinfer") else {peer: last["token, read back"]})}


def _sampling(label: str, report: Any) -> Iterator[Row]:
    alone = {row["sampling"]: row for row in report["rows"]}
    for step in report["batch"]:
        one = alone.get(step["sampling"])
        yield {
            "sampling": step["sampling"],
            "alone, pipelined": one and _times(one)["pipelined"],
            "of greedy": one and f"{one['of_greedy']:.0%}",
            f"step of {step['sequences']}": [short(step["step"][each]) for each in _SPREAD],
            "tok/s of all": round(step["tokens_per_second"]),
            "share of greedy": f"{step['of_greedy']:.0%}",
        }


def _choices(label: str, found: Any) -> Iterator[Row]:
    read = f"{found['unsure'] / found['tokens']:.1%}"
    yield {"tokens": found["tokens"], "texts that differ": len(found["differing"]), "choices read back": read}


def _drafts(label: str, report: Any) -> Iterator[Row]:
    for row in report["rows"]:
        times = {f"token, {way}": [short(row[way][each]) for each in _SPREAD] for way in ("plain", "guessed")}
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
        more = {"next to glinfer": next_to(found["seconds"]["glinfer"], seconds),
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
    yield {f"{row['tokens']} tokens": [short(row[f"{name}_ms"]) for name in _SPREAD] for row in report["rows"]}


def _web(label: str, found: Any) -> Iterator[Row]:
    """A row for each engine; the name of a way is ``engine, weights`` and maybe more."""
    rows, ours = dict[str, Row](), dict[str, float]()
    for model, told in found.items():
        for way in told["ways"]:
            engine, weights, *more = way["name"].split(", ")
            name, key = ", ".join((engine, *more)), f"{model} {weights}"
            row = rows.setdefault(name, {"engine": name})
            for part, column, factor in (("decode", "token", 1000), ("prompt", "prompt, s", 1)):
                if way[f"{part}_seconds"] is not None:
                    times = (way[f"{part}_seconds"], *way[f"{part}_seconds_ends"])
                    row[f"{key}: {column}"] = [short(factor * each) for each in times]
            ours.setdefault(key, way["decode_seconds"])
            if engine != "glinfer":
                row.setdefault("", []).append(f"{key} {next_to(ours[key], way['decode_seconds'])}")
        rows |= {line: {"engine": line} for line in told["left_out"]}
    for row in rows.values():
        yield {**row, **({"token, next to glinfer": ", ".join(row.pop(""))} if "" in row else {})}


_CONFIGS = {
    "Gemma 3 270M": "gemma3_text,blocks=18,heads=4,kv_heads=1,head_dim=256,dim=640,inner=2048,vocab=262144",
    "Qwen 3 0.6B": "qwen3,blocks=28,heads=16,kv_heads=8,head_dim=128,dim=1024,inner=3072,vocab=151936",
    "Llama 3.2 1B": "llama,blocks=16,heads=32,kv_heads=8,dim=2048,inner=8192,vocab=128256",
}
_BENCH, _WEB, _LOAD = "python -m qa bench", "python -m qa bench-web --models", "python -m qa serve-load --clients"
_BATCH = "glinfer run-batch -i requests.jsonl -o answers.jsonl --restart --slots 64 shakespeare"
_EVERY = "glinfer bench shakespeare --weights q8 --contexts 128 --runs 7 --every-option --batch"
_EVAL = "glinfer eval shakespeare --text tinyshakespeare.txt --last 0.02 --stride 256 --weights f32 --compare"
_LENGTHS = "glinfer bench --plan reference --runs 3 --lengths"
_SMOLLM2 = f"{_BENCH} smollm2 --weights q8,file,q8l,q16 --contexts 128 --batch 16 --runs 3"
_EMBED = "python -m qa embed-speed all-MiniLM-L6-v2 --count 300 --runs 2"
MEASURES = {
    "gab": Measure(
        _decoding,
        {"": f"{_BENCH} --weights q8,f32 --contexts 128 --batch 32 --runs 5 --peers torch,llama-cpp,transformers"},
        {"": f"{_BENCH} --weights q8,f32 --contexts 512 --batch 32 --runs 7 --peers torch"},
    ),
    "smollm2": Measure(_decoding, {"": f"{_SMOLLM2} --peers llama-cpp,transformers"}),
    "sizes": Measure(
        _sizes,
        gpu={
            name: f"glinfer bench --config family={shape},context=4096 --weights q8 --contexts 512 --runs 3"
            for name, shape in _CONFIGS.items()
        },
    ),
    "sampling": Measure(_sampling, {"": f"{_EVERY} 32"}, {"": f"{_EVERY} 64"}),
    "choices": Measure(
        _choices, *({"": f"python -m qa choices --tokens 50 --settings {count}"} for count in (40, 200))
    ),
    "server": Measure(
        _server,
        {"": f"{_LOAD} 16 --slots 16 --max-tokens 32 --prompts 100 --seconds 20"},
        {"": f"{_LOAD} 128 --slots 64 --max-tokens 128 --prompts 1000 --seconds 20"},
    ),
    "batches": Measure(
        _batches, {"1, the default": _BATCH}, {"1": f"{_BATCH} --devices 0", "2, the default of a GPU": _BATCH}
    ),
    "drafts": Measure(_drafts, {"": "glinfer bench smollm2 --weights file --speculate ngram --runs 1"}),
    "embedding": Measure(_embedding, {"": f"{_EMBED} --peer all-MiniLM-L6-v2"}),
    "threads": Measure(
        _threads,
        {
            words or "default": f"{words} {_BENCH} --weights q8 --contexts 128 --runs 5 --peers torch".strip()
            for words in ("", "LP_NUM_THREADS=0", "GLINFER_KEEP_AWAKE=1")
        },
    ),
    "accuracy": Measure(_accuracy, {"": f"{_EVAL} f16,q16,q8l,q8,cache=f16,q8+cache=f16,cache=q8"}),
    "reference": Measure(_reference, {"": f"{_LENGTHS} 1,8,64"}, {"": f"{_LENGTHS} 1,8,64,128,512"}),
    "web": Measure(
        _web,
        {"": f"{_WEB} gab,smollm2 --rounds 2 --count 8"},
        {"": f"{_WEB} gab --peers tfjs,wllama --rounds 4 --count 32 --threads 8"},
    ),
}
"""Every table by name; its file of figures is ``MACHINE-NAME.json``."""
BATCH_LINES = {"cpu": 300, "gpu": 2000}
QUICK = {"--runs": "1", "--rounds": "1", "--seconds": "2", "--settings": "2", "--prompts": "4", "--batch": "2",
         "--last": "0.001", "--lengths": "1,8", "--count": "8", "--config": "context=512", "--contexts": "32",
         "--models": "shakespeare"}  # fmt: skip
"""Small settings, to try all commands within minutes."""

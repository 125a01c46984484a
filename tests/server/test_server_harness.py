"""lm-evaluation-harness scores the bundled model through the server, offline, as ``model.score`` does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from running_server import running

import glinfer

HERE = Path(__file__).resolve().parent
LINES = [json.loads(line) for line in (HERE / "lm_eval_tasks" / "lines.jsonl").read_text().splitlines()]


def samples(folder: Path) -> list[dict[str, Any]]:
    """What the harness has written of each question."""
    if find_spec("lm_eval") is None:
        pytest.skip("lm-eval is not installed; pip install -e '.[all-tests]'")
    import transformers

    with glinfer.load("shakespeare") as model:
        library = model.require_tokenizer()._source._full  # for ASCII texts, such as these
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=library, eos_token="<|end|>")
    made.save_pretrained(folder / "tokenizer")
    with running(("shakespeare", "shakespeare")) as server:
        given = {
            "model": "shakespeare",
            "base_url": f"{server.url}/v1/completions",
            "tokenizer_backend": "huggingface",
            "tokenizer": folder / "tokenizer",
            "max_length": 256,
            "num_concurrent": 3,
            "custom_prefix_token_id": 10,
        }
        command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions"]
        command += ["--model_args", ",".join(f"{name}={value}" for name, value in given.items())]
        command += ["--tasks", "glinfer_lines", "--include_path", HERE / "lm_eval_tasks"]
        command += ["--batch_size", "2", "--log_samples", "--output_path", folder / "out"]
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home")}
        done = subprocess.run(command, cwd=HERE, env={**os.environ, **offline}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
    (path,) = folder.glob("out/**/samples_*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.gl
def test_continuations(tmp_path: Path) -> None:
    found, right = samples(tmp_path), 0
    assert len(found) == len(LINES)
    with glinfer.load("shakespeare") as model:
        tokenizer = model.require_tokenizer()
        for sample in found:
            line, logprobs = sample["doc"], []
            for choice, ((value, greedy),) in zip(line["choices"], sample["resps"], strict=True):
                ids, begin = tokenizer.encode(line["context"] + choice), len(tokenizer.encode(line["context"]))
                score = model.score([ids])[0]
                logprobs.append(score.logprobs[begin - 1 :].sum())
                assert float(value) == pytest.approx(logprobs[-1], abs=1e-4)
                assert str(greedy) == str(bool((score.likeliest[begin - 1 :] == ids[begin:]).all()))
            right += int(logprobs[line["gold"]] == max(logprobs))
            assert sample["acc"] == float(logprobs[line["gold"]] == max(logprobs))
    assert right >= 4, "the model knows these lines better than nonsense"

"""lm-evaluation-harness scores the bundled model through the server, offline, as ``model.score`` does; and it writes.

The harness asks the server for tokens too, since it gets no tokenizer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from running_server import running

import glinfer

HERE = Path(__file__).resolve().parent
LINES = [json.loads(line) for line in (HERE / "lm_eval_tasks" / "lines.jsonl").read_text().splitlines()]


def samples(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """What the harness has written of each question of each task."""
    if find_spec("lm_eval") is None:
        pytest.skip("lm-eval is not installed; pip install -e '.[all-tests]'")
    with running(("shakespeare", "shakespeare")) as server:
        given = {
            "model": "shakespeare",
            "base_url": f"{server.url}/v1/completions",
            "max_length": 256,
            "num_concurrent": 3,
        }
        command = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions"]
        command += ["--model_args", ",".join(f"{name}={value}" for name, value in given.items())]
        command += ["--tasks", "glinfer_lines,glinfer_writes", "--include_path", HERE / "lm_eval_tasks"]
        command += ["--batch_size", "2", "--log_samples", "--output_path", folder / "out"]
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home")}
        done = subprocess.run(command, cwd=HERE, env={**os.environ, **offline}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
    for path in sorted(folder.glob("out/**/samples_*.jsonl")):
        yield [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.gl
def test_scores_and_texts(tmp_path: Path) -> None:
    (found, written), right = samples(tmp_path), 0
    assert len(found) == len(written) == len(LINES)
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
        for sample in written:
            text = model.generate(sample["doc"]["context"], max_tokens=12, temperature=0, stop="\n")
            assert sample["resps"] == [[text]]
    assert right >= 4, "the model knows these lines better than nonsense"

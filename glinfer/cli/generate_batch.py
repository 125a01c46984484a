"""``glinfer generate --batch``: run the prompts of a file together and write the results to another file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from glinfer.cli.common import loaded, print_json, progress, say
from glinfer.cli.jobs import closing_line, job_facts, run_job
from glinfer.engine.batch import MAX_SLOTS
from glinfer.engine.defaults import default_sampling, merged
from glinfer.engine.fetching import found_model
from glinfer.jobs.job import BatchFiles, BatchJob
from glinfer.jobs.manifest import file_digest
from glinfer.jobs.prompts import PromptForm, PromptRunner, check_prompts
from glinfer.structured.structure import OPTIONS
from glinfer.terminal import emit
from glinfer.text.assembler import TextAssembler


def generate_batch(
    model: str,
    batch: dict[str, Any],
    *,
    max_tokens: int,
    stop: tuple[str, ...],
    keep: int,
    structured: Mapping[str, Any],
    sampling: Mapping[str, Any],
    as_json: bool,
    quiet: bool,
    **model_options: Any,
) -> None:
    """Check the options, then load the model and run the remaining prompts of the options ``batch``."""
    TextAssembler(stop)  # refuse a bad --stop before any line is read
    structure: dict[str, Any] = {kind: value for kind, value in structured.items() if kind in OPTIONS}
    model = os.fspath(found_model(model, tell=say))
    chosen = dataclasses.asdict(merged(default_sampling(model), sampling))
    defaults = {"max_tokens": max_tokens, "stop": stop, "stop_ids": None, **structure, **chosen}
    defaults |= {"keep": keep} if keep else {}  # absent from digests of older results
    paths = (model, model_options["tokenizer"])
    digests = [None if path is None else file_digest(path) for path in paths]
    how = {name: model_options[name] for name in ("weights", "cache", "gelu", "context")}
    if model_options["lora"]:  # the unnamed one is for lines that name none
        how["lora"] = {name: file_digest(path) for name, path in model_options["lora"].items()}
    files = BatchFiles(batch["batch"], batch["out"], restart=batch["restart"])
    fingerprint = {"form": "prompts", "model": digests[0], "tokenizer": digests[1], **how}
    form = PromptForm(defaults, (*digests, *how.values()))
    facts: dict[str, Any] = {name: model_options[name] for name in ("plan", "weights", "cache")} | {"renderer": None}
    with BatchJob(form, files, fingerprint, manifest_required=False) as job:
        if job.left:
            with loaded(model, **model_options) as opened:
                facts |= {"weights": opened.weights, "renderer": opened.device.description}
                with progress("checking prompts") as advance:
                    longest = check_prompts(opened, job.todo(), job.left, batch["batch"], advance)
                memory = None if batch["memory"] is None else batch["memory"] * 1_000_000
                runner = PromptRunner(opened, min(batch["slots"] or MAX_SLOTS, job.left), memory, longest)
                run_job(job, files, runner, "generating", lambda: opened.device.draws_issued, quiet=quiet)
        else:
            job.finish()
    if as_json:  # an invalid prompt stops the whole run
        print_json({"batch": files.source, "out": files.out, **job_facts(job, "failed"), **facts})
    elif not quiet:
        emit(closing_line(job, files, facts["renderer"], draws=True), err=True)

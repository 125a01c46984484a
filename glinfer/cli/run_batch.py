"""``glinfer run-batch``: run a file of requests in OpenAI's batch format."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from glinfer.cli import options as opt
from glinfer.cli.common import one_of, print_json, say
from glinfer.cli.jobs import closing_line, job_facts, run_job
from glinfer.cli.serve import fetched_models, require_packages
from glinfer.errors import InputError
from glinfer.formats import find_model
from glinfer.jobs.job import BatchFiles, BatchJob
from glinfer.jobs.lines import Shard
from glinfer.jobs.manifest import file_digest, files_of

if TYPE_CHECKING:
    from glinfer.jobs.local import LocalSetup
    from glinfer.jobs.pool import Pool


@click.command("run-batch")
@click.argument("models", nargs=-1, required=True, metavar="[NAME=]MODEL…")
@click.option(
    "-i",
    "--input",  # the older name
    "--in",
    "source",
    type=opt.NamedPath(),
    metavar="IN",
    required=True,
    help="Requests, one per line.",
)
@click.option("-o", "--out", type=opt.NamedPath(), metavar="OUT", required=True, help="File for the results.")
@click.option("--errors", type=opt.NamedPath(), metavar="ERR", help="File for failed requests. Default: OUT.")
@click.option("--restart", is_flag=True, help="Discard the results in OUT and ERR and start over.")
@click.option("--shard", default="1/1", metavar="I/N", help="Run part I of N of IN, chosen by a hash of custom_id.")
@click.option("--slots", type=click.IntRange(1, 256), help="Sequences at once, per model and device. Default: 32.")
@opt.cache_limit_options
@click.option(
    "--devices",
    metavar="all|N,N…",
    help="Run a process for each of these devices; 0,0 is two on one device. Default: two processes on a GPU for "
    "models up to 1 GiB, else one.",
)
@click.option("--ray", "address", metavar="ADDRESS", help="Run on this Ray cluster: auto, local, or HOST:PORT.")
@opt.tokenizer_option
@opt.lora_option
@opt.model_options
@opt.device_options
@opt.json_option
@click.option("--quiet", "-q", is_flag=True, help="Do not print the closing line.")
def run_batch_command(models: tuple[str, ...], as_json: bool, quiet: bool, **given: Any) -> None:
    """Answer the requests in IN with MODEL, in OpenAI's batch file format.

    A line of IN has custom_id, method, url and body, like a request to 'glinfer serve'; a line of OUT has the answer.
    A request without a seed gets one from its custom_id, so texts do not depend on order or shards. Rerun the same
    command to resume. Failed requests leave the exit status 0. Files that end in .gz or .zst are compressed; fsspec
    opens URLs.

    \b
    glinfer run-batch -i in.jsonl -o out.jsonl --errors failed.jsonl shakespeare
    glinfer run-batch -i in.jsonl.gz -o out-2.jsonl --shard 2/8 small=model.gguf
    """
    require_packages("run-batch", "batch")
    from glinfer.jobs.local import LocalSetup
    from glinfer.jobs.requests import RequestForm

    source, out, errors, restart = (given.pop(name) for name in ("source", "out", "errors", "restart"))
    files = BatchFiles(source, out, errors, restart, Shard.parse(given.pop("shard")))
    scheduler = opt.take_scheduler(given)
    device, api, limits = given.pop("device"), given.pop("api"), given.pop("limits")
    devices = given.pop("devices")
    address = given.pop("address")
    one_of({"--device": device, "--devices": devices, "--ray": address})
    named = fetched_models(models, given, device=device, api=api, limits=limits)
    if twice := next((name for name, _ in named if [each for each, _ in named].count(name) > 1), None):
        raise InputError(f"found two models with the name {twice}; rename one with NAME=MODEL")
    setup = LocalSetup([(name, path, given) for name, path in named], scheduler, device, api, limits is not None)
    tokenizer, paths = given["tokenizer"], {name: Path(find_model(path)) for name, path in named}
    fingerprint: dict[str, Any] = {
        "form": "requests",
        "models": {name: file_digest(path) for name, path in paths.items()},
        "tokenizer": None if tokenizer is None else file_digest(tokenizer),
        **{name: given[name] for name in ("plan", "weights", "cache", "gelu", "context")},
    }
    if given["lora"]:
        fingerprint["lora"] = {name: file_digest(path) for name, path in given["lora"].items()}
    with BatchJob(RequestForm(), files, fingerprint) as job:
        renderer = None
        if job.left:
            with runner_of(setup, devices, address, paths.values(), fingerprint["models"], job.left) as runner:
                renderer = runner.renderer
                run_job(job, files, runner, "answering", lambda: runner.draws, quiet=quiet)
        else:
            job.finish()
    if as_json:
        names = {"input": files.source, "out": files.out, "errors": files.errors, "shard": str(files.shard)}
        print_json({**names, **job_facts(job, "dropped"), "renderer": renderer})
    elif not quiet:
        say(closing_line(job, files, renderer))


_MANY_LINES = 200  # fewer are done before a second process has started


def runner_of(
    setup: LocalSetup,
    devices: str | None,
    address: str | None,
    paths: Collection[Path],
    digests: Mapping[str, str],
    lines: int,
) -> AbstractContextManager[Pool]:
    """Choose what answers ``lines`` lines: this process, one per device in ``devices``, or a cluster at ``address``.

    ``paths`` and ``digests`` are those of the models.
    """
    from glinfer.jobs.claims import parse_devices, usual_processes
    from glinfer.jobs.local import LocalRunner
    from glinfer.jobs.pool import Pool
    from glinfer.jobs.process import ProcessMember

    if address is not None:
        from glinfer.ray.member import ray_pool

        return ray_pool(address, setup, digests)
    if devices is not None:
        setups = [dataclasses.replace(setup, device=each) for each in parse_devices(devices)]
    elif setup.device is None and "GLINFER_DEVICE" not in os.environ and lines >= _MANY_LINES:
        nbytes = sum(part.stat().st_size for path in paths for part in files_of(path) or [path])
        setups = [setup] * usual_processes(nbytes)
    else:
        setups = [setup]
    return LocalRunner(setup) if setups == [setup] else Pool([partial(ProcessMember, each) for each in setups])

"""The planted faults: one wrong piece of text each, chosen by what a user would suffer and not by what tests look at.

Every fault changes behaviour in one place, and the program still starts. Where the code changes, its fault changes too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    Attributes:
        name: the fault in a few words.
        path: the file, relative to the checkout.
        old: text that occurs exactly once in the file.
        new: text that replaces it.
        rooms: folders or files of tests that are run first.
    """

    name: str
    path: str
    old: str
    new: str
    rooms: tuple[str, ...]


FAULTS = (
    # gl
    Fault(
        "unused-programs-never-released",
        "glinfer/gl/program.py",
        "for key in unused[: max(0, len(unused) - MAX_UNUSED_PROGRAMS)]:",
        "for key in unused[:0]:",
        ("tests/gl/test_kept_programs.py", "tests/gl", "tests/tensors"),
    ),
    Fault(
        "blending-stays-on-after-a-run",
        "glinfer/gl/replay.py",
        "            device.raw.disable(GL_BLEND)\n        device.check(",
        "            pass\n        device.check(",
        ("tests/gl/test_faults.py", "tests/gl", "tests/tensors"),
    ),
    Fault(
        "ctrl-c-lost-while-compiling",
        "glinfer/gl/signals.py",
        "        for number, frame in came.items():\n            handlers[number](number, frame)\n",
        "        came.clear()\n",
        ("tests/gl/test_signals.py", "tests/gl", "tests/cli"),
    ),
    # tensors
    Fault(
        "rope-table-ignores-attention-factor",
        "glinfer/tensors/position.py",
        "angles = (rotary, frequencies.tobytes(), factor)",
        "angles = (rotary, frequencies.tobytes(), 1.0)",
        ("tests/tensors/test_position.py", "tests/tensors"),
    ),
    Fault(
        "fused-attention-ignores-offset",
        "glinfer/tensors/attention.py",
        "return offset if causal else None",
        "return 0 if causal else None",
        ("tests/tensors/test_sequences.py", "tests/tensors"),
    ),
    # ops
    Fault(
        "llama3-rope-turns-in-radians",
        "glinfer/kernels/rotary.py",
        "turns = original * angles / (2 * math.pi)",
        "turns = original * angles",
        ("tests/tensors/test_position.py", "tests/kernels", "tests/tensors", "tests/models"),
    ),
    Fault(
        "equal-logits-take-the-highest-id",
        "glinfer/kernels/fused/sample.py",
        "np.where(among, ids, np.inf).min(axis=1), best",
        "np.where(among, ids, -1.0).max(axis=1), best",
        ("tests/kernels/test_fast_ops.py", "tests/kernels", "tests/engine"),
    ),
    # quant
    Fault(
        "bfloat16-nan-accepted",
        "glinfer/quant/ggml.py",
        'rows.view("<u2") & 0x7F80 == 0x7F80',
        'rows.view("<u2") & 0x7FFF == 0x7F80',
        ("tests/quant/test_ggml_groups.py", "tests/quant", "tests/formats"),
    ),
    Fault(
        "importance-ignored-while-packing",
        "glinfer/quant/ggml.py",
        "pack_blocks(floats.reshape(-1, inputs), form.name, importance)",
        "pack_blocks(floats.reshape(-1, inputs), form.name, None)",
        ("tests/quant/test_block_packing.py", "tests/quant", "tests/inspect", "tests/export"),
    ),
    Fault(
        "q8-rounding-ignores-lower-bytes",
        "glinfer/quant/words.py",
        "np.subtract(np.multiply(places[place], by_word, out=number), behind, out=number)",
        "np.multiply(places[place], by_word, out=number)",
        ("tests/quant/test_quantise.py", "tests/quant", "tests/gl"),
    ),
    # formats
    Fault(
        "truncated-gguf-accepted",
        "glinfer/formats/gguf/file.py",
        "if first + length > len(mapped):",
        "if length > len(mapped):",
        ("tests/formats/test_formats_gguf.py", "tests/formats"),
    ),
    Fault(
        "rank-stabilised-adapter-scaled-as-plain",
        "glinfer/formats/adapters/peft.py",
        'float(alpha) / (math.sqrt(rank) if settings.flag("use_rslora") else rank)',
        "float(alpha) / rank",
        ("tests/formats/test_adapters.py", "tests/formats", "tests/models"),
    ),
    Fault(
        "do-sample-false-still-samples",
        "glinfer/formats/sampling.py",
        'named["temperature"] = 0.0',
        'named.setdefault("temperature", 0.0)',
        ("tests/engine/test_defaults.py", "tests/formats", "tests/engine"),
    ),
    # families
    Fault(
        "smollm3-gguf-turns-every-layer",
        "glinfer/families/smollm3.py",
        'Gguf("smollm3", pairs_together=True, more=_of_metadata)',
        'Gguf("smollm3", pairs_together=True)',
        ("tests/formats/test_gguf_write.py", "tests/formats", "tests/models"),
    ),
    # models
    Fault(
        "kept-weights-lose-the-branch-scale",
        "glinfer/lower/weights/fold.py",
        "        gain = gain * recipe.scale\n",
        "",
        ("tests/models/test_fold.py", "tests/models"),
    ),
    Fault(
        "reference-plan-ignores-windows",
        "glinfer/lower/plain/decoder.py",
        "finish = Finish(scale=node.of.score_scale, cap=node.of.score_cap, causal=0, window=node.of.window)",
        "finish = Finish(scale=node.of.score_scale, cap=node.of.score_cap, causal=0)",
        ("tests/models/test_fold.py", "tests/models"),
    ),
    Fault(
        "fast-plan-leaves-logits-uncapped",
        "glinfer/lower/fused/token.py",
        "self.hidden[0], self.logits, cap=config.final_logit_softcapping)",
        "self.hidden[0], self.logits)",
        ("tests/models/test_layers.py", "tests/models"),
    ),
    Fault(
        "token-types-dropped-from-pairs",
        "glinfer/lower/feed.py",
        "np.asarray(types) * positions + np.arange(count) if positions else types",
        "np.arange(count) if positions else types",
        ("tests/models/test_encode_plan.py", "tests/models", "tests/engine"),
    ),
    Fault(
        "patch-stays-in-caches-after-its-block",
        "glinfer/engine/capture.py",
        "        finally:\n            self.engine.patches += 1\n",
        "        finally:\n            pass\n",
        ("tests/models/test_capture.py", "tests/models", "tests/engine"),
    ),
    # engine
    Fault(
        "top-p-keeps-one-token-more",
        "glinfer/engine/sampler.py",
        "(before < top_p[rows] * total[rows])",
        "(before <= top_p[rows] * total[rows])",
        ("tests/engine/test_sampler.py", "tests/engine"),
    ),
    Fault(
        "cache-shared-between-clients",
        "glinfer/engine/scheduler.py",
        "wanted) if place.owner == owner else 0",
        "wanted) if place.owner[1:] == owner[1:] else 0",
        ("tests/server/test_server_routes.py", "tests/engine", "tests/server"),
    ),
    Fault(
        "stale-residual-after-rewind",
        "glinfer/engine/run/cached.py",
        "        self._cached = min(self._cached, length)\n        self._residual_tokens = 0\n",
        "        self._cached = min(self._cached, length)\n",
        ("tests/engine/test_decode.py", "tests/engine"),
    ),
    Fault(
        "prompt-plans-never-released",
        "glinfer/engine/prefill.py",
        "if runs.session not in self._prefill.firsts.values():",
        "if runs.session is None:",
        ("tests/engine/test_decode.py", "tests/engine"),
    ),
    Fault(
        "draft-model-draws-from-step-zero",
        "glinfer/engine/run/drafts.py",
        "own.step = sampler.step",
        "own.step = 0",
        ("tests/engine/test_drafts.py", "tests/engine"),
    ),
    Fault(
        "perplexity-counts-the-first-token",
        "glinfer/engine/score.py",
        "math.exp(-self.total / len(self.logprobs))",
        "math.exp(-self.total / len(self.ids))",
        ("tests/engine/test_score.py", "tests/engine", "tests/inspect"),
    ),
    Fault(
        "cut-vectors-keep-the-old-length",
        "glinfer/engine/embed.py",
        'np.einsum("td,td->t", cut, cut, dtype=np.float64)',
        'np.einsum("td,td->t", vectors, vectors, dtype=np.float64)',
        ("tests/engine/test_embed.py", "tests/engine", "tests/models"),
    ),
    Fault(
        "forced-tokens-take-no-step",
        "glinfer/engine/run/alone.py",
        "            each.sampler.advance()  # each token has noise of its own, chosen or not\n",
        "",
        ("tests/engine/test_structured_texts.py", "tests/engine", "tests/structured"),
    ),
    # text
    Fault(
        "gguf-forgets-the-first-token-of-llama3",
        "glinfer/text/tokenizers/gguf.py",
        'self.flag("add_bos_token", self.kind in ("llama", "gemma4") or pre in BEGIN_WITH_BOS)',
        'self.flag("add_bos_token", self.kind in ("llama", "gemma4"))',
        ("tests/text/test_gguf_tokenizer.py", "tests/text"),
    ),
    Fault(
        "message-forges-control-tokens",
        "glinfer/text/template_worker.py",
        "made._own = bytes(len(text)) if own is None else own",
        'made._own = b"\\1" * len(text) if own is None else own',
        ("tests/text/test_chat.py", "tests/text", "tests/attacks"),
    ),
    Fault(
        "text-held-for-a-stop-string-is-lost",
        "glinfer/text/assembler.py",
        'self._release(self._decoder.decode(b"", final=True), final=True)',
        'self._release(self._decoder.decode(b"", final=True), final=False)',
        ("tests/text/test_text.py", "tests/text", "tests/engine"),
    ),
    # structured
    Fault(
        "second-text-continues-the-first-structure",
        "glinfer/structured/compiler.py",
        "return Constraint(matcher.deep_copy(), self._vocab, stop_ids)",
        "return Constraint(matcher, self._vocab, stop_ids)",
        ("tests/structured/test_structures.py", "tests/structured", "tests/engine"),
    ),
    Fault(
        "only-the-last-schema-properties-count",
        "glinfer/structured/structure.py",
        'properties += len(value["properties"])',
        'properties = len(value["properties"])',
        ("tests/structured/test_structures.py", "tests/structured", "tests/attacks"),
    ),
    # hub
    Fault(
        "download-hash-not-compared",
        "glinfer/hub/cache.py",
        "if hasher.hexdigest() == file.digest:",
        "if hasher.hexdigest():",
        ("tests/hub/test_hub_pull.py", "tests/hub"),
    ),
    Fault(
        "hub-file-name-may-have-backslashes",
        "glinfer/formats/files.py",
        "        and not _FORBIDDEN & set(path)\n",
        "",
        ("tests/hub/test_hub_choice.py", "tests/hub", "tests/attacks"),
    ),
    Fault(
        "remove-takes-a-blob-that-is-shared",
        "glinfer/hub/cache.py",
        'shared = any(os.path.realpath(other) == str(blob) for other in cache.folder.glob("snapshots/**/*"))',
        "shared = False",
        ("tests/hub/test_hub_commands.py", "tests/hub"),
    ),
    # server
    Fault(
        "origin-that-begins-like-the-host-may-ask",
        "glinfer/server/auth.py",
        "parts.netloc.lower() == host.lower()",
        "parts.netloc.lower().startswith(host.lower())",
        ("tests/server/test_server_routes.py", "tests/server", "tests/attacks"),
    ),
    Fault(
        "full-queue-takes-one-request-more",
        "glinfer/server/worker.py",
        "if own + count > most:",
        "if own > most:",
        ("tests/server/test_server_life.py", "tests/server"),
    ),
    Fault(
        "broken-stream-ends-without-its-error",
        "glinfer/server/streaming.py",
        "            await send(_body(self._on_error(error)))\n",
        "",
        ("tests/server/test_server_life.py", "tests/server"),
    ),
    # batch, ray
    Fault(
        "two-batches-write-one-file",
        "glinfer/jobs/results.py",
        "locked = lock(self._file.fileno())",
        "locked = True",
        ("tests/jobs/test_batch_files.py", "tests/jobs"),
    ),
    Fault(
        "changed-request-counts-as-answered",
        "glinfer/jobs/lines.py",
        "hex_of([self.key, self.url, self.body])",
        "hex_of([self.key, self.url])",
        ("tests/jobs/test_requests.py", "tests/jobs"),
    ),
    Fault(
        "columns-of-a-row-lose-to-the-common-body",
        "glinfer/ray/generator.py",
        "fields = {**self.body, **{name: value for name, value in own.items() if value is not None}}",
        "fields = {**{name: value for name, value in own.items() if value is not None}, **self.body}",
        ("tests/jobs/test_generator.py", "tests/jobs"),
    ),
    # export
    Fault(
        "site-range-one-byte-short",
        "glinfer/export/serve.py",
        "min(size, int(last) + 1) if last else size",
        "min(size, int(last)) if last else size",
        ("tests/export/test_export_web.py", "tests/export"),
    ),
    Fault(
        "offline-page-keeps-old-files",
        "glinfer/export/site.py",
        "json.dumps([plan, digests], ensure_ascii=False, sort_keys=True)",
        "json.dumps([plan], ensure_ascii=False, sort_keys=True)",
        ("tests/export/test_export_web.py", "tests/export", "web/tests"),
    ),
    # inspect
    Fault(
        "bits-per-byte-in-nats",
        "glinfer/inspect/evaluate.py",
        "bits_per_byte=-score.total / math.log(2) / size",
        "bits_per_byte=-score.total / size",
        ("tests/inspect/test_eval.py", "tests/inspect"),
    ),
    Fault(
        "report-page-not-escaped",
        "glinfer/inspect/pages.py",
        "autoescape=True",
        "autoescape=False",
        ("tests/inspect/test_look.py", "tests/inspect"),
    ),
    # cli
    Fault(
        "interrupted-command-exits-with-1",
        "glinfer/cli/app.py",
        "        return _EXIT_INTERRUPTED\n",
        "        return 1\n",
        ("tests/cli/test_chat_comfort.py", "tests/cli"),
    ),
    Fault(
        "batch-memory-in-kibibytes",
        "glinfer/cli/common.py",
        'None if taken["memory"] is None else taken["memory"] << 20',
        'None if taken["memory"] is None else taken["memory"] << 10',
        ("tests/jobs/test_run_batch.py", "tests/jobs", "tests/cli"),
    ),
    # shaders
    Fault(
        "rope-angle-sign",
        "shaders/rotate.frag",
        "vec4(-v.y, v.x, -v.w, v.z) * t.yyww",
        "vec4(v.y, -v.x, v.w, -v.z) * t.yyww",
        ("tests/tensors/test_every_kernel.py", "tests/tensors", "tests/kernels"),
    ),
    Fault(
        "window-of-decoding-one-token-wider",
        "shaders/cached_scores.frag",
        "int oldest = position - WINDOW + 1;",
        "int oldest = position - WINDOW;",
        ("tests/kernels/test_byte_ops.py", "tests/kernels", "tests/models"),
    ),
    Fault(
        "sink-left-out-of-the-softmax",
        "shaders/cached_values.frag",
        "(dot(weights, vec4(1.0)) SINK_WEIGHT(all))",
        "dot(weights, vec4(1.0))",
        ("tests/kernels/test_fast_ops.py", "tests/kernels", "tests/models"),
    ),
    Fault(
        "byte-cache-scale-rounded-down",
        "shaders/common/bytes.glsl",
        "(floatBitsToUint(size * (1.0 / 127.0)) + 0xffffu) >> 16u",
        "floatBitsToUint(size * (1.0 / 127.0)) >> 16u",
        ("tests/kernels/test_byte_ops.py", "tests/kernels", "tests/models"),
    ),
    Fault(
        "q2k-second-half-takes-the-first-minimum",
        "shaders/common/group_form.glsl",
        "least * vec4(ivec4((words >> 12u) & 15u))",
        "least * vec4(ivec4((words >> 4u) & 15u))",
        ("tests/kernels/test_fast_ops.py", "tests/kernels", "tests/models"),
    ),
    Fault(
        "weighted-pooling-counts-from-zero",
        "shaders/pool_rows.frag",
        "float(token - base + 1) * (v)",
        "float(token - base) * (v)",
        ("tests/kernels/test_encode_ops.py", "tests/kernels", "tests/models"),
    ),
    Fault(
        "ignored-targets-add-to-the-loss",
        "shaders/cross_entropy.frag",
        "return column == target ? found : 0.0;",
        "return found;",
        ("tests/tensors/test_reduction.py", "tests/tensors"),
    ),
    Fault(
        "convolution-bleeds-between-sequences",
        "shaders/causal_conv.frag",
        "max(0, LENGTH - 1 - at.x % SEQUENCE)",
        "max(0, LENGTH - 1 - at.x)",
        ("tests/tensors/test_sequences.py", "tests/tensors", "tests/kernels"),
    ),
    Fault(
        "padding-chosen-as-a-token",
        "shaders/pick.frag",
        "if (score[i] > best.x && token + i < VOCAB)",
        "if (score[i] > best.x)",
        ("tests/kernels/test_fast_ops.py", "tests/kernels", "tests/engine"),
    ),
    Fault(
        "choice-forgets-a-replaced-token",
        "shaders/choice_list.frag",
        "(fourth > LEAST ? rest + 1.0 : rest) * weight",
        "rest * weight",
        ("tests/engine/test_choice.py", "tests/engine", "tests/kernels"),
    ),
    # web
    Fault(
        "page-top-p-keeps-one-token-more",
        "web/glinfer/sampler.js",
        "sums.findIndex((sum) => sum >= this.topP * total)",
        "sums.findIndex((sum) => sum > this.topP * total)",
        ("web/tests",),
    ),
    Fault(
        "tabs-overwrite-each-other",
        "web/page/store.js",
        "return saved.revision === (kept?.revision ?? 0) + 1;",
        "return saved.revision > (kept?.revision ?? 0);",
        ("web/tests",),
    ),
    Fault(
        "links-of-answers-run-scripts",
        "web/markdown_answers.js",
        'new Set(["http:", "https:", "mailto:"])',
        'new Set(["http:", "https:", "mailto:", "javascript:"])',
        ("web/tests",),
    ),
)

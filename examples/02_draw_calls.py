"""Count Gab's draw calls three ways: by formula, in the plan, and as issued, for both plans.

`glinfer draws --config gab --plan reference` lists them by pass.
"""

import sys

import glinfer

MODEL = sys.argv[1] if len(sys.argv) > 1 else "shakespeare"  # a file, or the bundled model of Gab's architecture

for plan in ("reference", "fast"):
    with glinfer.load(MODEL, plan=plan) as model:
        blocks, heads = model.config.num_hidden_layers, model.config.num_attention_heads
        formula = blocks * (8 + 4 * heads) + 4 if plan == "reference" else 6 * blocks + 3
        list(stream := model.stream([1, 2, 3], max_tokens=4, temperature=0))
        issued = stream.stats.draws_per_token
        print(f"{plan}: {formula} by formula, {model.draws().total} in the plan, {issued:g} issued per token")

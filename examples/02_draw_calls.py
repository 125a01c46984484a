"""Count draw calls three ways: by formula, from the plan (no GPU needed), and as really issued; for both plans."""

import sys

import glinfer
from glinfer import ModelConfig
from glinfer.models.choice import plan_for
from glinfer.models.plan import draw_table

MODEL = sys.argv[1] if len(sys.argv) > 1 else "shakespeare"  # a file, or a bundled model

gab = ModelConfig.from_options("blocks=6,heads=8,dim=512,vocab=5256,context=2048")
formulas = {
    "reference": gab.num_hidden_layers * (8 + 4 * gab.num_attention_heads) + 4,
    "fast": 6 * gab.num_hidden_layers + 3,
}
for plan, formula in formulas.items():
    table = draw_table(plan_for(gab, plan), tokens=16)
    print(f"Gab, {plan}: {formula} by formula, {table.total} in the plan")
    for row in table.rows:
        print(f"  {row.kind:14} {row.count:3} draws into {row.cols}×{row.rows}")

for plan in formulas:
    with glinfer.load(MODEL, plan=plan) as model:
        stream = model.stream([1, 2, 3], max_tokens=4, temperature=0)
        list(stream)
        issued = stream.stats.draws_per_token
        print(f"this model, {plan}: {model.draws().total} in the plan, {issued:g} issued per token")

"""Count draw calls three ways: by formula, from the plan (no GPU needed), and as really issued."""

import sys

import glinfer
from glinfer import ModelConfig
from glinfer.models.gab import reference_plan
from glinfer.models.plan import draw_table

MODEL = sys.argv[1] if len(sys.argv) > 1 else "shakespeare"  # a file, or a bundled model

gab = ModelConfig.from_options("blocks=6,heads=8,dim=512,vocab=5256,context=2048")
formula = gab.num_hidden_layers * (8 + 4 * gab.num_attention_heads) + 4
table = draw_table(reference_plan(gab), tokens=16)
print(f"Gab: {formula} by formula, {table.total} in the plan")
for row in table.rows:
    print(f"  {row.kind:14} {row.count:3} draws into {row.cols}×{row.rows}")

with glinfer.load(MODEL) as model:
    before = model.device.draws_issued
    model.logits([1, 2, 3])
    issued = model.device.draws_issued - before
    print(f"this model: {model.draws().total} in the plan, {issued} issued")

"""Send prompts to one model while others run, read all answers as they grow, and cancel one of them."""

import sys

import glinfer

MODEL = sys.argv[1] if len(sys.argv) > 1 else "shakespeare"  # a file, or a bundled model
SCENE = "KING RICHARD:\nMy lord, what news from the north?\n\n"  # both of the later prompts begin with it

with glinfer.load(MODEL) as model, model.scheduler(slots=2) as scheduler:
    king = scheduler.insert(glinfer.BatchRequest(SCENE, {"max_tokens": 24, "seed": 1}, key="king"))
    texts = {"king": "", "duke": "", "queen": ""}
    step = 0
    while len(scheduler):
        for event in scheduler.next():
            name = str(event.sequence.request.key)
            texts[name] += event.text
            if event.result is not None:
                print(f"step {step}: {name} ended by {event.result.stats.finish_reason}: {event.result.text!r}")
        step += 1
        if step == 4:  # two more while the first one runs; two can run at a time
            duke = scheduler.insert(glinfer.BatchRequest(SCENE + "DUKE:\n", {"max_tokens": 30, "seed": 2}, key="duke"))
            queen = scheduler.insert(
                glinfer.BatchRequest(SCENE + "QUEEN:\n", {"max_tokens": 12, "seed": 3}, key="queen")
            )
        if step == 12:
            scheduler.cancel(duke)  # the queen's prompt starts in its slot
            print(f"step {step}: duke cancelled after {duke.stats.tokens} tokens: {texts['duke']!r}")
    print("reused of the prompts:", [each.stats.reused_tokens for each in (king, duke, queen)])

    alone = model.generate(SCENE + "QUEEN:\n", max_tokens=12, seed=3)
    print("the queen says what she says alone:", texts["queen"] == alone)

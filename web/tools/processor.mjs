// Seconds of processors, which say more than a clock where a machine does other work too.

import { existsSync, readdirSync, readFileSync } from "node:fs";
import process from "node:process";

const taken = new Map(); // hundredths of seconds, by the process; those that have ended count on

/** Seconds of processors that all processes started from here have taken so far; null where that cannot be known. */
export function processorSeconds() {
  if (!existsSync("/proc/self/stat")) return null;
  const parents = new Map();
  const ticks = new Map();
  for (const id of readdirSync("/proc").filter((name) => /^\d+$/.test(name)).map(Number)) {
    try {
      const fields = readFileSync(`/proc/${id}/stat`, "utf8").split(") ")[1].split(" ");
      parents.set(id, Number(fields[1]));
      ticks.set(id, Number(fields[11]) + Number(fields[12]));
    } catch {
      // it has ended meanwhile
    }
  }
  const isOurs = (id) => id === process.pid || (parents.has(id) && isOurs(parents.get(id)));
  for (const [id, count] of ticks) if (id !== process.pid && isOurs(id)) taken.set(id, count);
  return [...taken.values()].reduce((sum, count) => sum + count / 100, 0);
}

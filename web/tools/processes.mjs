// What the processes take that a script has started, as Linux tells it.

import { existsSync, readdirSync, readFileSync } from "node:fs";
import process from "node:process";

const KILOBYTE = 1024;
const taken = new Map(); // hundredths of seconds, by the process; those that have ended count on

/** Hundredths of seconds of processors of all processes started from here, by their ids; without `leaveOut` and those from there. */
function descendants(leaveOut = null) {
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
  const isOurs = (id) => id !== leaveOut && (id === process.pid || (parents.has(id) && isOurs(parents.get(id))));
  return new Map([...ticks].filter(([id]) => id !== process.pid && isOurs(id)));
}

/** Seconds of processors that all processes started from here have taken so far; null where that cannot be known. */
export function processorSeconds() {
  if (!existsSync("/proc/self/stat")) return null;
  for (const [id, count] of descendants()) taken.set(id, count);
  return [...taken.values()].reduce((sum, count) => sum + count / 100, 0);
}

/**
 * Bytes of memory of all processes started from here, each shared page counted once; null where that cannot be known.
 * @param {number} leaveOut the process that does not count, nor those that it has started.
 */
export function memoryBytes(leaveOut) {
  if (!existsSync("/proc/self/smaps_rollup")) return null;
  let sum = 0;
  for (const id of descendants(leaveOut).keys()) {
    try {
      sum += KILOBYTE * Number(/^Pss:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${id}/smaps_rollup`, "utf8"))[1]);
    } catch {
      // it has ended meanwhile
    }
  }
  return sum;
}

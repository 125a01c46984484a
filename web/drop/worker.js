/** The worker of the page that opens GGUF files, which replaces ../page/worker.js. */

import { serveWorker } from "../glinfer/threads.js";
import { LocalEngine } from "../page/local.js";
import { loadGguf } from "../drop/load.js";

serveWorker(new LocalEngine(loadGguf));

/** The worker of the page that opens GGUF files, see ../page/worker.js, in whose place it is. */

import { serveWorker } from "../glinfer/threads.js";
import { LocalEngine } from "../page/local.js";
import { loadGguf } from "../drop/load.js";

serveWorker(new LocalEngine(loadGguf));

/** A worker of the chat page: the model and its conversation, so that the page itself never waits for either. */

import { serveWorker } from "../glinfer/threads.js";
import { LocalEngine } from "./local.js";

serveWorker(new LocalEngine());

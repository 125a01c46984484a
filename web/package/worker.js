/** A worker that runs an exported model; index.js starts it. */

import { hostModels } from "./glinfer/host.js";
import { loadAny } from "./any.js";

hostModels(loadAny);

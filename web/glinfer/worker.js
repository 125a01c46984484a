/** A worker that runs a model of a site; remote.js starts it. */

import { hostModels } from "./host.js";
import { load } from "./model.js";

hostModels(load);
